#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cross_attention/module_parts.h"
#include "mxfa/error.h"

/// What the public interface of the module refuses, by name and before it writes anything.
namespace mxfa::testing {
namespace {

struct Case {
  std::string name;
  std::string message;
  std::function<void(Parts&)> spoil;
  bool backward = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  using P = Parts;
  return {
      {"HopperBackend", "backend: expected cpu, got hopper (no kernels of it in this build)",
       [](P& p) { p.call.options.backend = Backend::kHopper; }},
      {"Heads", "num_heads: expected at least 1, got 0",
       [](P& p) { p.call.options.num_heads = 0; }},
      {"HeadsThatDoNotDivide", "wq: expected a multiple of num_heads = 3 rows, got bf16 [128, 128]",
       [](P& p) { p.call.options.num_heads = p.call.options.num_heads_kv = 3; }},
      {"HeadsKv", "num_heads: expected a multiple of num_heads_kv = 4, got 2",
       [](P& p) { p.call.options.num_heads_kv = 4; }},
      {"Backend", "backend: expected a member of Backend, got 77",
       [](P& p) { p.call.options.backend = Backend{77}; }},
      {"Precision", "precision: expected mxfp8 or bf16, got 77",
       [](P& p) { p.call.options.precision = attention::Precision{77}; }},
      {"Recipe", "recipe: expected blackwell or hopper, got 77",
       [](P& p) { p.call.options.recipe = attention::Recipe{77}; }},
      {"ScaleRule", "scale_rule: expected round-up or floor, got 77",
       [](P& p) { p.call.options.scale_rule = ScaleRule{77}; }},
      {"Eps", "eps: expected a finite number of at least 0, got nan",
       [](P& p) { p.call.options.eps = NAN; }},
      {"SoftmaxScale", "softmax_scale: expected a finite number above 0, got -1",
       [](P& p) { p.call.options.softmax_scale = -1; }},
      {"LongSequence", "cu_seqlens_k[1]: expected a sequence of at most 5 rows, got one of ",
       [](P& p) { p.call.options.max_seqlen_k = 5; }},
      {"Seeds", "seeds: expected a matrix, got bf16 [40, 128, 1]",
       [](P& p) { p.call.inputs.seeds.rank = 3, p.call.inputs.seeds.shape[2] = 1; }},
      {"Kv", "kv: expected shape [", [](P& p) { p.call.inputs.kv.shape[1] = 96; }},
      {"KvDType", "kv: expected bf16, f16 or f32, got e4m3 [",
       [](P& p) { p.call.inputs.kv.dtype = DType::kE4M3; }},
      {"Wk", "wk: expected shape [128, 128], got bf16 [64, 128]",
       [](P& p) { p.call.inputs.wk.shape[0] = 64; }},
      {"Wo", "wo: expected shape [128, 128], got bf16 [128, 127]",
       [](P& p) { p.call.inputs.wo.shape[1] = 127; }},
      {"NormWeight", "kv_norm_weight: expected shape [128], got bf16 [127]",
       [](P& p) { p.call.inputs.kv_norm_weight.shape[0] = 127; }},
      {"NullWeight", "wv: expected data, got a null pointer for bf16 [128, 128]",
       [](P& p) { p.call.inputs.wv.data = nullptr; }},
      {"Offsets", "cu_seqlens_k[2]: expected at least ", [](P& p) { p.call.cu_seqlens_k[2] = 1; }},
      {"Y", "y: expected shape [120, 128], got f32 [119, 128]", [](P& p) { p.y.shape[0] = 119; }},
      {"Activations", "activations.kv_norm: expected e4m3 [",
       [](P& p) { p.activations.kv_norm.values.dtype = DType::kBF16; }},
      {"ActivationsOfAnotherRecipe",
       "activations.q.scales: expected e8m0 [2, 2], got e8m0 [2, 2, 2]",
       [](P& p) { p.call.options.recipe = attention::Recipe::kHopper; }},
      {"Workspace", "workspace: expected at least ", [](P& p) { p.space = p.space.first(64); }},
      {"WorkspaceAlignment",
       "workspace: expected an address on 64 bytes, got one 8 bytes past that",
       [](P& p) { p.space = p.space.subspan(8); }},
      {"NullWorkspace", "workspace: expected data, got a null pointer for ",
       [](P& p) {
         p.space = {static_cast<std::byte*>(nullptr), p.space.size()};
       }},
      {"NullWorkspaceOfBackward", "workspace: expected data, got a null pointer for ",
       [](P& p) {
         p.space = {static_cast<std::byte*>(nullptr), p.space.size()};
       },
       true},
      {"Dy", "dy: expected shape [120, 128], got bf16 [120, 127]",
       [](P& p) { p.call.dy_view.shape[1] = 127; }, true},
      {"Gradient", "gradients.wq: expected shape [128, 128], got f32 [128, 96]",
       [](P& p) { p.gradients.wq.shape[1] = 96; }, true},
      {"GradientDType", "gradients.kv: expected f32 or bf16, got f16 [",
       [](P& p) { p.gradients.kv.dtype = DType::kF16; }, true},
      {"GradientStride", "gradients.seeds: expected an output whose elements do not share memory",
       [](P& p) { p.gradients.seeds.strides[0] = 0; }, true},
      {"Intermediates", "intermediates.dq_seq: expected f32 [120, 2, 64], got none",
       [](P& p) { p.intermediates.dq_seq = {}; }, true},
  };
}

class CrossAttentionRefuses : public ::testing::TestWithParam<Case> {};

TEST_P(CrossAttentionRefuses, ByNameBeforeAnythingIsWritten) {
  Parts parts;
  GetParam().spoil(parts);
  std::string message;
  try {
    GetParam().backward ? parts.backward() : parts.forward();
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_EQ(message.substr(0, GetParam().message.size()), GetParam().message) << message;
  for (PoisonedMemory* memory :
       {&parts.activation_memory, &parts.workspace, &parts.intermediate_memory}) {
    for (const std::byte b : memory->span()) ASSERT_EQ(b, std::byte{0xFF});
  }
  for (const auto& [name, values] : parts.call.results()) {
    for (const float value : *values) ASSERT_TRUE(std::isnan(value)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CrossAttentionRefuses, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(CrossAttentionApi, MemoryThatIsTooSmallIsRefused) {
  ModuleCall call(plain_shape().batch(), {});
  PoisonedMemory memory(cross_attention::activation_bytes(call.inputs, call.options));
  EXPECT_THROW(make_activations(call.inputs, call.options, memory.span().first(1000)), Error);
  EXPECT_THROW(make_intermediates(call.inputs, call.options, memory.span().first(64)), Error);
}

TEST(CrossAttentionApi, MemoryWithoutAnAddressIsRefused) {
  ModuleCall call(plain_shape().batch(), {});
  const std::span<std::byte> nowhere(static_cast<std::byte*>(nullptr), std::size_t{1} << 30);
  const auto message_of = [](auto make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of([&] { make_activations(call.inputs, call.options, nowhere); }),
            "activations: expected data, got a null pointer for 1073741824 bytes");
  EXPECT_EQ(message_of([&] { make_intermediates(call.inputs, call.options, nowhere); }),
            "intermediates: expected data, got a null pointer for 1073741824 bytes");
}

/// The call's own workspace gives what a given one gives; asking to look changes nothing.
TEST(CrossAttentionApi, WorkspaceAndIntermediatesAreOptional) {
  Parts parts;
  parts.space = {};
  parts.forward();
  parts.backward();
  ModuleCall want(plain_shape().batch(), {});
  want.run();
  expect_same_bits(parts.call, want, "own workspace, with intermediates:");
}

}  // namespace
}  // namespace mxfa::testing
