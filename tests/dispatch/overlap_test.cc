#include "dispatch/overlap.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "mxfa/error.h"
#include "support/rng.h"

namespace mxfa::dispatch {
namespace {

TensorView strided(std::int64_t first, DType dtype, std::vector<std::int64_t> shape,
                   std::vector<std::int64_t> strides) {
  static std::uint8_t memory[1 << 16];
  TensorView view = make_tensor(memory + first, dtype, shape);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

/// Every byte of a view.
std::set<const std::uint8_t*> bytes_of(const TensorView& view) {
  std::set<const std::uint8_t*> bytes;
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  for (std::int64_t i = 0; i < view.num_elements(); ++i) {
    std::int64_t offset = 0;
    for (std::int64_t d = view.rank - 1, rest = i; d >= 0; rest /= view.shape[d], --d) {
      offset += rest % view.shape[d] * view.strides[d];
    }
    for (std::int64_t b = 0; b < size; ++b) {
      bytes.insert(static_cast<const std::uint8_t*>(view.data) + offset * size + b);
    }
  }
  return bytes;
}

bool meet(const TensorView& a, const TensorView& b) {
  const auto of_a = bytes_of(a), of_b = bytes_of(b);
  return std::any_of(of_a.begin(), of_a.end(), [&](const auto* at) { return of_b.contains(at); });
}

TEST(ShareMemory, HeadsOfOneBufferDoNot) {
  // [tokens, 6 heads, 16]: q has four heads, k and v one each.
  const auto part = [](std::int64_t head, std::int64_t heads) {
    return strided(1024 + head * 32, DType::kBF16, {50, heads, 16}, {96, 16, 1});
  };
  EXPECT_EQ(share_memory(part(0, 4), part(4, 1)), false);
  EXPECT_EQ(share_memory(part(4, 1), part(5, 1)), false);
  EXPECT_EQ(share_memory(part(0, 5), part(4, 1)), true);
  // [heads, tokens, dim], cut by tokens.
  const auto rows = [](std::int64_t token, std::int64_t tokens) {
    return strided(1024 + token * 32, DType::kBF16, {tokens, 6, 16}, {16, 800, 1});
  };
  EXPECT_EQ(share_memory(rows(0, 20), rows(20, 30)), false);
  EXPECT_EQ(share_memory(rows(0, 21), rows(20, 30)), true);
  // A transposed view of the same memory.
  EXPECT_EQ(share_memory(part(0, 6), rows(0, 50)), true);
  // Even and odd elements.
  EXPECT_EQ(share_memory(strided(0, DType::kF32, {40, 30}, {60, 2}),
                         strided(4, DType::kF32, {30, 40}, {2, 60})),
            false);
}

/// Against every byte of both.
TEST(ShareMemory, RandomViewsAgreeWithTheirBytes) {
  testing::Rng rng(3);
  const auto below = [&](std::int64_t end) { return rng.integer(0, end - 1); };
  const auto view = [&] {
    const DType dtypes[] = {DType::kU8, DType::kBF16, DType::kF32};
    std::vector<std::int64_t> shape, strides;
    for (std::int64_t d = below(4); d >= 0; --d) {
      shape.push_back(1 + below(4));
      strides.push_back(below(12) * (below(8) == 0 ? 20 : 1) - (below(8) == 0 ? 8 : 0));
    }
    return strided(30000 + below(40) * 4, dtypes[below(3)], shape, strides);
  };
  int shared = 0, apart = 0;
  for (int i = 0; i < 4000; ++i) {
    const TensorView a = view(), b = view();
    const std::optional<bool> got = share_memory(a, b);
    const bool want = meet(a, b);
    ASSERT_TRUE(got.has_value()) << i;
    ASSERT_EQ(*got, want) << i;
    ++(want ? shared : apart);
  }
  EXPECT_GT(shared, 400);
  EXPECT_GT(apart, 400);
}

TEST(Overlaps, NameTheOutputAndTheOther) {
  const TensorView q = strided(0, DType::kBF16, {8, 16}, {16, 1});
  const Tensor o{strided(200, DType::kE4M3, {8, 16}, {16, 1}),
                 strided(600, DType::kE8M0, {1, 1}, {1, 1})};
  const TensorView lse = strided(596, DType::kF32, {2}, {1});
  const TensorView none, empty = make_tensor(q.data, DType::kF32, {0, 4});
  const auto message = [](const Overlaps& tensors) {
    try {
      tensors.check();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  Overlaps tensors;
  tensors.input(q, "q");
  tensors.input(q, "k");
  tensors.input(none, "v");
  tensors.output(empty, "row_max");
  EXPECT_EQ(message(tensors), "accepted");
  tensors.output(o, "o");
  EXPECT_EQ(message(tensors),
            "o: expected memory that no other tensor of the call has, got some of q's");
  Overlaps scales;
  scales.output(o, "o");
  scales.output(lse, "lse");
  EXPECT_EQ(message(scales),
            "o.scales: expected memory that no other tensor of the call has, got some of lse's");
  Overlaps workspace;
  workspace.input(q, "q");
  workspace.workspace({static_cast<std::byte*>(q.data) + 255, 100});
  EXPECT_EQ(message(workspace),
            "workspace: expected memory that no other tensor of the call has, got some of q's");
}

}  // namespace
}  // namespace mxfa::dispatch
