#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cross_attention/module_parts.h"
#include "support/spoiled.h"

/// Steps of the module with one tensor spoiled at random: refused by name, and nothing written.
namespace mxfa::testing {
namespace {

using Role = Argument::Role;

void add(std::vector<Argument>& arguments, const std::vector<Named>& tensors, Role role) {
  for (const Named& tensor : tensors) {
    const Role its = tensor.name == "cu_seqlens_k" ? Role::kOffsets : role;
    arguments.push_back({tensor.name, tensor.view, its});
  }
}

class CrossAttentionSpoiled : public ::testing::TestWithParam<ModuleMode> {};

TEST_P(CrossAttentionSpoiled, TensorIsNamed) {
  for (std::uint64_t number = 0; number < 120; ++number) {
    Parts parts(GetParam().options);
    const bool backward = number % 2 == 1;
    std::vector<Argument> arguments;
    add(arguments, inputs_of(parts), Role::kInput);
    if (backward) {
      add(arguments, activations_of(parts), Role::kInput);
      arguments.push_back({"dy", &parts.call.dy_view});
      add(arguments, gradients_of(parts), Role::kOutput);
      add(arguments, intermediates_of(parts), Role::kOutput);
    } else {
      add(arguments, activations_of(parts), Role::kOutput);
      arguments.push_back({"y", &parts.y, Role::kOutput});
    }
    Rng rng(number);
    Spoiled spoiled;
    if (rng.integer(0, 9) == 0) {
      spoiled = spoil_offsets(rng, parts.call.cu_seqlens_k, parts.call.inputs.kv.shape[0],
                              "cu_seqlens_k");
    } else {
      spoiled = spoil(rng, arguments);
    }
    spoiled.what = fmt::format("{}: {}", number, spoiled.what);
    expect_refused(spoiled, [&] { backward ? parts.backward() : parts.forward(); });
    for (PoisonedMemory* memory :
         {&parts.activation_memory, &parts.workspace, &parts.intermediate_memory}) {
      for (const std::byte b : memory->span()) ASSERT_EQ(b, std::byte{0xFF}) << number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CrossAttentionSpoiled, ::testing::ValuesIn(module_modes()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace mxfa::testing
