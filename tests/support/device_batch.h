#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "mx/bits.h"
#include "mx/jagged_scale.h"
#include "mx/permutation.h"
#include "support/compare.h"
#include "support/machine.h"

/// Packed sequences on the device of a test program, and what several kernels' tests share.
namespace mxfa::testing {

/// Offsets as kernels read them: made on the device from cu_seqlens, or closed forms.
class DeviceBatch {
 public:
  explicit DeviceBatch(const std::vector<std::int32_t>& cu_seqlens, bool dense = false)
      : offsets(mx::make_jagged_offsets(cu_seqlens, cu_seqlens.back())),
        tokens_(machine().upload(std::span<const std::int32_t>(cu_seqlens))),
        groups_(machine().poisoned(cu_seqlens.size() * 8)),
        tiles_(machine().poisoned(cu_seqlens.size() * 8)) {
    const auto batch = static_cast<std::int32_t>(offsets.batch());
    if (dense) {
      view = {.batch = batch, .seqlen = batch > 0 ? offsets.seqlen(0) : 0};
      return;
    }
    device::jagged_offsets(machine().queue(), tokens_.as<const std::int32_t>(), batch,
                           groups_.as<std::int64_t>(), tiles_.as<std::int64_t>());
    view = {.cu_seqlens = tokens_.as<const std::int32_t>(),
            .group_begin = groups_.as<const std::int64_t>(),
            .tile_begin = tiles_.as<const std::int64_t>(),
            .batch = batch};
  }

  std::int64_t total() const { return offsets.tokens.back(); }
  std::int64_t max_tiles() const { return mx::max_tiles(total(), offsets.batch()); }
  /// The arrays as the device wrote them.
  void expect_offsets() const {
    EXPECT_TRUE(
        bitwise_equal(groups_.download<std::int64_t>(), offsets.groups, {.label = "groups"}));
    EXPECT_TRUE(bitwise_equal(tiles_.download<std::int64_t>(), offsets.tiles, {.label = "tiles"}));
  }

  mx::JaggedOffsets offsets;
  device::JaggedOffsetsView view;

 private:
  Guarded tokens_, groups_, tiles_;
};

/// The same bits, and nothing written around them.
template <class T>
void expect_same(const Guarded& got, const std::vector<T>& want, const std::string& label,
                 std::int64_t cols = 0) {
  EXPECT_TRUE(bitwise_equal(got.download<T>(), want, {.label = label, .cols = cols}));
  EXPECT_TRUE(got.guards_intact()) << label << ": wrote outside";
}

/// One bit pattern for all NaNs: which one an operation gives differs between machines.
inline std::vector<float> canonical(std::vector<float> values) {
  for (float& value : values) {
    if (mx::is_nan(value)) value = std::numeric_limits<float>::quiet_NaN();
  }
  return values;
}
inline std::vector<std::uint16_t> canonical_bf16(std::vector<std::uint16_t> codes) {
  for (std::uint16_t& code : codes) {
    if (mx::is_nan(mx::decode_bf16(code))) code = 0x7FFF;
  }
  return codes;
}

/// The token at a position of a transposed copy.
inline std::int64_t token_at(device::TokenOrder order, std::int64_t position) {
  const auto p = static_cast<int>(position % mx::kPermutationGroup);
  if (order == device::TokenOrder::kPi) return position - p + mx::pi_token(p);
  if (order == device::TokenOrder::kSigma) return position - p + mx::sigma_token(p);
  return position;
}

/// Codes [total, width] as a transposed copy [tiles, width, 128].
inline std::vector<std::uint8_t> transposed_copy(const mx::JaggedOffsets& offsets,
                                                 const std::vector<std::uint8_t>& codes,
                                                 std::int64_t width, device::TokenOrder order) {
  std::vector<std::uint8_t> result(
      static_cast<std::size_t>(offsets.tiles.back() * width * mx::kAtomRows));
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    const std::int64_t end = (offsets.tiles[s + 1] - offsets.tiles[s]) * mx::kAtomRows;
    for (std::int64_t p = 0; p < end; ++p) {
      const std::int64_t token = token_at(order, p);
      if (token >= offsets.seqlen(s)) continue;
      const std::int64_t tile = offsets.tiles[s] + p / mx::kAtomRows;
      for (std::int64_t column = 0; column < width; ++column) {
        result[(tile * width + column) * mx::kAtomRows + p % mx::kAtomRows] =
            codes[(offsets.tokens[s] + token) * width + column];
      }
    }
  }
  return result;
}

}  // namespace mxfa::testing
