#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mxfa::reference {

/// A dense row-major matrix that owns its elements: [rows, cols].
template <class T>
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<T> data;

  Matrix() = default;
  Matrix(std::int64_t row_count, std::int64_t col_count, T value = T{})
      : rows(row_count),
        cols(col_count),
        data(static_cast<std::size_t>(row_count * col_count), value) {}

  T& operator()(std::int64_t row, std::int64_t col) { return data[row * cols + col]; }
  const T& operator()(std::int64_t row, std::int64_t col) const { return data[row * cols + col]; }
  std::span<T> row(std::int64_t index) { return {data.data() + index * cols, std::size_t(cols)}; }
  std::span<const T> row(std::int64_t index) const {
    return {data.data() + index * cols, std::size_t(cols)};
  }
};

}  // namespace mxfa::reference
