#include "kernels/sm90/forward/key_band.h"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

namespace mxfa::testing {
namespace {

using attention::Mask;
using sm90::forward::KeyBand;

void expect_same(const Mask& mask, std::int32_t seqlen_q, std::int32_t seqlen_k,
                 std::int32_t first_row) {
  const KeyBand band = KeyBand::of(mask, seqlen_q, seqlen_k, first_row);
  for (std::int32_t row = 0; row < 256 && first_row + row < seqlen_q; ++row) {
    const attention::KeyRange want =
        attention::visible_keys(mask, seqlen_q, seqlen_k, std::int64_t{first_row} + row);
    const std::int32_t begin = band.first_key(row), end = band.end_key(row, seqlen_k);
    ASSERT_EQ(end <= begin, want.empty()) << seqlen_q << ", " << seqlen_k << ", row " << row;
    if (want.empty()) continue;
    ASSERT_EQ(begin, want.begin) << seqlen_q << ", " << seqlen_k << ", row " << row;
    ASSERT_EQ(end, want.end) << seqlen_q << ", " << seqlen_k << ", row " << row;
  }
}

std::vector<Mask> all_masks() {
  std::vector<Mask> masks;
  for (const int left : {-1, 0, 1, 40, INT_MAX}) {
    for (const int right : {-1, 0, 2, 90, INT_MAX}) {
      for (const auto alignment : {CausalAlignment::kBottomRight, CausalAlignment::kTopLeft}) {
        for (const bool causal : {false, true}) masks.push_back({causal, alignment, left, right});
      }
    }
  }
  return masks;
}

TEST(ForwardKeyBand, SeesWhatTheMaskShows) {
  constexpr std::int32_t kLong = INT_MAX - 2048, kLastTile = 192 * (kLong / 192);
  for (const Mask& mask : all_masks()) {
    for (const std::int32_t seqlen_k : {0, 1, 5, 290, 700, kLong}) {
      for (const std::int32_t seqlen_q : {1, 7, 300}) {
        expect_same(mask, seqlen_q, seqlen_k, 0);
        expect_same(mask, seqlen_q, seqlen_k, 192);
      }
      expect_same(mask, kLong, seqlen_k, kLastTile);
    }
  }
}

}  // namespace
}  // namespace mxfa::testing
