#include "kernels/sm90/common/band.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <vector>

namespace mxfa::testing {
namespace {

using attention::Mask;
using sm90::Band;

void expect_same_keys(const Mask& mask, std::int32_t seqlen_q, std::int32_t seqlen_k,
                      std::int32_t first_row) {
  const Band band = Band::of_rows(mask, seqlen_q, seqlen_k, first_row);
  for (std::int32_t row = 0; row < 256 && first_row + row < seqlen_q; ++row) {
    const attention::KeyRange want =
        attention::visible_keys(mask, seqlen_q, seqlen_k, std::int64_t{first_row} + row);
    const std::int32_t begin = band.first(row), end = band.end_of(row, seqlen_k);
    ASSERT_EQ(end <= begin, want.empty()) << seqlen_q << ", " << seqlen_k << ", row " << row;
    if (want.empty()) continue;
    ASSERT_EQ(begin, want.begin) << seqlen_q << ", " << seqlen_k << ", row " << row;
    ASSERT_EQ(end, want.end) << seqlen_q << ", " << seqlen_k << ", row " << row;
  }
}

void expect_same_rows(const Mask& mask, std::int32_t seqlen_q, std::int32_t seqlen_k,
                      std::int32_t first_key) {
  const Band band = Band::of_keys(mask, seqlen_q, seqlen_k, first_key);
  for (std::int32_t key = 0; key < 256 && key < seqlen_k - first_key; ++key) {
    const std::int64_t packed = std::int64_t{first_key} + key;
    const attention::KeyRange want =
        attention::seeing_rows(mask, seqlen_q, seqlen_k, packed, packed + 1);
    const std::int32_t begin = band.first(key), end = band.end_of(key, seqlen_q);
    ASSERT_EQ(end <= begin, want.empty()) << seqlen_q << ", " << seqlen_k << ", key " << packed;
    if (want.empty()) continue;
    ASSERT_EQ(begin, want.begin) << seqlen_q << ", " << seqlen_k << ", key " << packed;
    ASSERT_EQ(end, want.end) << seqlen_q << ", " << seqlen_k << ", key " << packed;
  }
}

void expect_same_last_keys(const Mask& mask, std::int32_t seqlen_q, std::int32_t seqlen_k,
                           std::int32_t first_key, std::int32_t first_row) {
  const Band band = Band::of_keys(mask, seqlen_q, seqlen_k, first_key);
  const std::int32_t from = band.first(seqlen_k - 1 - first_key);
  for (std::int32_t row = first_row; row - first_row < 256 && row < seqlen_q; ++row) {
    const attention::KeyRange keys = attention::visible_keys(mask, seqlen_q, seqlen_k, row);
    if (keys.empty()) continue;
    ASSERT_EQ(seqlen_k - 1 - std::max(0, from - row), keys.end - 1)
        << seqlen_q << ", " << seqlen_k << ", " << row;
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

TEST(Band, OfRowsIsWhatTheMaskShows) {
  constexpr std::int32_t kLong = INT_MAX - 2048, kLastTile = 192 * (kLong / 192);
  for (const Mask& mask : all_masks()) {
    for (const std::int32_t seqlen_k : {0, 1, 5, 290, 700, kLong}) {
      for (const std::int32_t seqlen_q : {1, 7, 300}) {
        expect_same_keys(mask, seqlen_q, seqlen_k, 0);
        expect_same_keys(mask, seqlen_q, seqlen_k, 192);
      }
      expect_same_keys(mask, kLong, seqlen_k, kLastTile);
    }
  }
}

TEST(Band, OfKeysIsWhatTheMaskShows) {
  constexpr std::int32_t kLong = INT_MAX - 2048, kLastTile = 128 * (kLong / 128);
  for (const Mask& mask : all_masks()) {
    for (const std::int32_t seqlen_q : {0, 1, 5, 290, 700, kLong}) {
      for (const std::int32_t seqlen_k : {1, 7, 300}) {
        expect_same_rows(mask, seqlen_q, seqlen_k, 0);
        expect_same_rows(mask, seqlen_q, seqlen_k, 128);
      }
      expect_same_rows(mask, seqlen_q, kLong, 0);
      expect_same_rows(mask, seqlen_q, kLong, kLastTile);
    }
  }
}

TEST(Band, OfKeysKnowsTheLastKeyOfARow) {
  constexpr std::int32_t kLong = INT_MAX - 2048;
  for (const Mask& mask : all_masks()) {
    for (const std::int32_t seqlen_k : {0, 1, 5, 290, 700, kLong}) {
      for (const std::int32_t seqlen_q : {1, 300, kLong}) {
        for (const std::int32_t first_key : {0, seqlen_k / 128 * 128}) {
          expect_same_last_keys(mask, seqlen_q, seqlen_k, first_key, 0);
          expect_same_last_keys(mask, seqlen_q, seqlen_k, first_key, std::max(0, seqlen_q - 100));
        }
      }
    }
  }
}

}  // namespace
}  // namespace mxfa::testing
