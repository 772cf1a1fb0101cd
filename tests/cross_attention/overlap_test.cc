#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cross_attention/module_parts.h"
#include "mxfa/error.h"

/// Memory that tensors of one call of the module share: outputs none, inputs any.
namespace mxfa::testing {
namespace {

std::size_t bytes_of(const TensorView& view) {
  return std::size_t(view.num_elements()) * dtype_size(view.dtype);
}

class CrossAttentionOverlap : public ::testing::TestWithParam<ModuleMode> {
 protected:
  Parts parts_{GetParam().options};

  std::string message(bool backward) {
    try {
      backward ? parts_.backward() : parts_.forward();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  /// `tensor` moved to `data`. Of two outputs either may be called the one with the other's memory.
  void expect_refused(const Named& tensor, void* data, const std::string& other, bool backward) {
    void* const own = std::exchange(tensor.view->data, data);
    const std::string got = message(backward);
    tensor.view->data = own;
    const auto refusal = [](std::string_view output, std::string_view with) {
      return fmt::format(
          "{}: expected memory that no other tensor of the call has, got some of {}'s", output,
          with);
    };
    EXPECT_TRUE(got == refusal(tensor.name, other) || got == refusal(other, tensor.name))
        << tensor.name << " on " << other << ": " << got;
  }

  /// Each output on the first bytes of each other tensor, and each tensor on those of the
  /// workspace.
  void expect_each_pair_refused(const std::vector<Named>& inputs, const std::vector<Named>& outputs,
                                bool backward) {
    const std::vector<Named> all = joined(inputs, outputs);
    // A slot for each tensor, as large as the largest: what moves touches one other only.
    std::size_t slot = 0;
    for (const Named& tensor : all) slot = std::max(slot, bytes_of(*tensor.view) / 64 * 64 + 64);
    const std::size_t workspace = std::max(slot, parts_.space.size());
    PoisonedMemory memory(std::int64_t(slot * all.size() + workspace));
    std::byte* next = memory.span().data();
    for (const Named& tensor : all) {
      tensor.view->data = std::exchange(next, next + slot);
    }
    parts_.space = {next, parts_.space.size()};
    TensorView& offsets = parts_.call.inputs.cu_seqlens_k;
    const auto& values = parts_.call.cu_seqlens_k;
    std::memcpy(offsets.data, values.data(), bytes_of(offsets));
    for (const Named& other : all) {
      // Offsets are read before.
      if (other.name != "cu_seqlens_k") {
        expect_refused(other, parts_.space.data(), "workspace", backward);
      }
      for (const Named& output : outputs) {
        if (other.name == output.name) continue;
        expect_refused(output, other.view->data, other.name, backward);
      }
    }
    EXPECT_EQ(std::memcmp(offsets.data, values.data(), bytes_of(offsets)), 0);
    std::memset(offsets.data, 0xFF, bytes_of(offsets));
    for (const std::byte b : memory.span()) ASSERT_EQ(b, std::byte{0xFF});
  }
};

TEST_P(CrossAttentionOverlap, OfTheForwardIsNamed) {
  expect_each_pair_refused(inputs_of(parts_), joined({{"y", &parts_.y}}, activations_of(parts_)),
                           false);
}

TEST_P(CrossAttentionOverlap, OfTheBackwardIsNamed) {
  expect_each_pair_refused(
      joined(joined(inputs_of(parts_), activations_of(parts_)), {{"dy", &parts_.call.dy_view}}),
      joined(gradients_of(parts_), intermediates_of(parts_)), true);
}

/// Two weights may be one tensor; dy may be the forward's y.
TEST_P(CrossAttentionOverlap, OfInputsIsNone) {
  Parts want(GetParam().options);
  want.call.wv = want.call.wk;
  want.call.kv_norm_weight = want.call.seed_norm_weight;
  want.call.run();
  parts_.call.inputs.wv = parts_.call.inputs.wk;
  parts_.call.inputs.kv_norm_weight = parts_.call.inputs.seed_norm_weight;
  EXPECT_EQ(message(false), "accepted");
  EXPECT_EQ(message(true), "accepted");
  expect_same_bits(parts_.call, want.call, "one tensor for two inputs:");
  parts_.call.dy_view = parts_.y;
  EXPECT_EQ(message(true), "accepted");
}

INSTANTIATE_TEST_SUITE_P(Modes, CrossAttentionOverlap, ::testing::ValuesIn(module_modes()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace mxfa::testing
