#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "mxemu/emulator.h"

namespace mxfa::emu::test {

/// PTX of tests/kernels/NAME.cu for `arch` (sm_90a, sm_100a).
inline std::string kernel_ptx(const std::string& name, const std::string& arch) {
  const std::string path = std::string(MXEMU_PTX_DIR) + "/" + name + "." + arch + ".ptx";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << "cannot read " << path;
  return text.str();
}

/// A buffer of global memory with the values of a vector.
template <class T>
class Buffer {
 public:
  Buffer(GlobalMemory& memory, const std::vector<T>& values, const std::string& name)
      : memory_(memory), size_(values.size()), data_(allocate(name)) {
    std::copy(values.begin(), values.end(), data_);
    memory_.mark_initialised(data_, size_ * sizeof(T));
  }
  /// Not initialised: kernels must write it.
  Buffer(GlobalMemory& memory, std::size_t size, const std::string& name)
      : memory_(memory), size_(size), data_(allocate(name)) {}
  ~Buffer() { memory_.free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }
  bool written() const { return memory_.is_initialised(data_, size_ * sizeof(T)); }

 private:
  T* allocate(const std::string& name) {
    return reinterpret_cast<T*>(memory_.allocate(size_ * sizeof(T), name));
  }
  GlobalMemory& memory_;
  std::size_t size_;
  T* data_;
};

inline std::vector<float> random_floats(std::size_t count, float scale, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

/// The message of the PtxError that `call` throws; a failure where it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const PtxError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a PtxError";
  return {};
}

}  // namespace mxfa::emu::test
