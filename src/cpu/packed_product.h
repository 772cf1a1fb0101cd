#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/matrix_reader.h"
#include "cpu/units.h"

/// Dense products of operands in any form, block by block. Internal to gemm() and gemm_quantize().
namespace mxfa::cpu {

inline constexpr std::int64_t kGemmRows = 96;    // of A at a time
inline constexpr std::int64_t kGemmDepth = 512;  // of the sum: A and a panel of B stay in L2

struct GemmScratch {
  Buffer<std::uint16_t> plain, packed, panels;
  Buffer<float> sums;
};

/// A block of op(a) as a product's left operand, in scratch.
struct LeftBlock {
  const std::uint16_t* data;
  LeftLayout layout;
  std::int64_t pair_stride;
};
/// Part [first, first + count) of one dimension.
struct Part {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
/// op(a)[rows, depths]; depths even.
LeftBlock read_left(const MatrixReader& a, Part rows, Part depths, GemmScratch& scratch);
/// op(b)[depths, cols] as panels; cols a multiple of kPanel, depths even.
void read_right(const MatrixReader& b, Part depths, Part cols, Buffer<std::uint16_t>& plain,
                std::uint16_t* panels);

struct Extents {
  std::int64_t m, n, k;
};
/// Throws Error where op(a) and op(b) do not fit.
Extents extents(const MatrixReader& a, const MatrixReader& b);

/// All of op(b), packed: for each kGemmDepth of the sum one run of panels.
class PackedRight {
 public:
  PackedRight(const MatrixReader& b, std::int64_t n, std::int64_t k);

  std::int64_t n_padded() const { return n_; }
  /// scratch.sums [rows, n_padded] = op(a)[rows] op(b).
  void multiply(const MatrixReader& a, Part rows, GemmScratch& scratch);

 private:
  std::int64_t n_;
  std::int64_t k_;
  Buffer<std::uint16_t> panels_;
};

}  // namespace mxfa::cpu
