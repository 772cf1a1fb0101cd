#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cpu/attention_call.h"
#include "support/spoiled.h"

/// Calls of attention with one argument spoiled at random: refused by name, and nothing written.
namespace mxfa::testing {
namespace {

using Role = Argument::Role;

AttentionCall good_call(const attention::Options& options) {
  return random_call({.num_heads = 2,
                      .num_heads_kv = 1,
                      .head_dim = 32,
                      .cu_seqlens_q = {0, 5, 40},
                      .cu_seqlens_k = {0, 33, 70},
                      .options = options},
                     21);
}

Spoiled spoil_options(Rng& rng, attention::Options& options) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double scales[] = {NAN, kInf, -kInf, 0.0, -1.0, 1e-300, 1e300};
  switch (rng.integer(0, 7)) {
    case 0:
      options.softmax_scale = scales[rng.integer(0, 6)];
      return {"softmax_scale", {"softmax_scale"}};
    case 1:
      options.window_left = -2 - int(rng.integer(0, 1000));
      return {"window_left", {"window_left"}};
    case 2:
      options.window_right = -2 - int(rng.integer(0, 1000));
      return {"window_right", {"window_right"}};
    case 3:
      options.max_seqlen_k = rng.integer(0, 32);
      return {"cu_seqlens_k", {"cu_seqlens_k"}};
    case 4:
      options.max_seqlen_q = rng.integer(0, 4);
      return {"cu_seqlens_q", {"cu_seqlens_q"}};
    case 5:
      options.precision = static_cast<attention::Precision>(9);
      return {"precision", {"precision"}};
    case 6:
      options.recipe = static_cast<attention::Recipe>(9);
      return {"recipe", {"recipe"}};
    default:
      options.scale_rule = static_cast<ScaleRule>(9);
      return {"scale_rule", {"scale_rule"}};
  }
}

Spoiled spoil_workspace(Rng& rng, std::span<std::byte>& workspace) {
  switch (rng.integer(0, 2)) {
    case 0:
      workspace = workspace.first(std::size_t(rng.integer(1, 64)));
      break;
    case 1:
      workspace = workspace.subspan(std::size_t(rng.integer(1, 63)));
      break;
    default:
      workspace = {static_cast<std::byte*>(nullptr), workspace.size()};
      break;
  }
  return {"workspace", {"workspace"}};
}

bool untouched(const std::vector<float>& values) {
  std::vector<float> poison;
  AttentionCall::poison(poison, std::int64_t(values.size()));
  return std::memcmp(values.data(), poison.data(), values.size() * sizeof(float)) == 0;
}

/// Number N of the calls of one pass. `arguments` are those of its args, which take `bytes` of
/// workspace.
template <class Run>
void expect_spoiled_refused(std::uint64_t number, AttentionCall& call, std::int64_t bytes,
                            const std::vector<Argument>& arguments, const Run& run) {
  Rng rng(number);
  alignas(64) static std::byte memory[1 << 20];
  std::span<std::byte> workspace(memory);
  const std::int64_t way = rng.integer(0, 9);
  Spoiled spoiled;
  if (way == 0) {
    spoiled = spoil_options(rng, call.options);
  } else if (way == 1 && bytes > 64) {
    spoiled = spoil_workspace(rng, workspace);
  } else if (way == 2) {
    const bool q = rng.integer(0, 1) == 0;
    spoiled = q ? spoil_offsets(rng, call.cu_seqlens_q, call.total_q(), "cu_seqlens_q")
                : spoil_offsets(rng, call.cu_seqlens_k, call.total_k(), "cu_seqlens_k");
  } else {
    spoiled = spoil(rng, arguments);
  }
  spoiled.what = fmt::format("{}: {}", number, spoiled.what);
  expect_refused(spoiled, [&] { run(call.options, workspace); });
}

TEST(CpuAttentionSpoiled, ForwardNamesTheArgument) {
  for (std::uint64_t number = 0; number < 3000; ++number) {
    AttentionCall call = good_call(all_modes()[number % all_modes().size()].options);
    call.poison_all();
    attention::ForwardArgs args = call.forward_args();
    expect_spoiled_refused(number, call, attention::forward_workspace_bytes(args, call.options),
                           {{"q", &args.q.values},
                            {"k", &args.k.values},
                            {"v", &args.v.values},
                            {"cu_seqlens_q", &args.cu_seqlens_q, Role::kOffsets},
                            {"cu_seqlens_k", &args.cu_seqlens_k, Role::kOffsets},
                            {"o", &args.o.values, Role::kOutput},
                            {"lse", &args.lse, Role::kOutput},
                            {"row_max", &args.row_max, Role::kOutput}},
                           [&](const attention::Options& options, std::span<std::byte> workspace) {
                             attention::forward(args, options, workspace);
                           });
    ASSERT_TRUE(untouched(call.o) && untouched(call.lse) && untouched(call.row_max)) << number;
  }
}

TEST(CpuAttentionSpoiled, BackwardNamesTheArgument) {
  for (std::uint64_t number = 0; number < 3000; ++number) {
    AttentionCall call = good_call(all_modes()[number % all_modes().size()].options);
    call.poison_all();
    attention::BackwardArgs args = call.backward_args();
    if (call.options.precision == attention::Precision::kBf16 ||
        call.options.recipe != attention::Recipe::kHopper) {
      args.row_max = {};
    }
    std::vector<Argument> arguments{{"q", &args.q.values},
                                    {"k", &args.k.values},
                                    {"v", &args.v.values},
                                    {"cu_seqlens_q", &args.cu_seqlens_q, Role::kOffsets},
                                    {"cu_seqlens_k", &args.cu_seqlens_k, Role::kOffsets},
                                    {"o", &args.o.values},
                                    {"lse", &args.lse},
                                    {"dout", &args.dout.values},
                                    {"dq", &args.dq.values, Role::kOutput},
                                    {"dk", &args.dk.values, Role::kOutput},
                                    {"dv", &args.dv.values, Role::kOutput}};
    if (args.row_max.rank > 0) arguments.push_back({"row_max", &args.row_max});
    expect_spoiled_refused(number, call, attention::backward_workspace_bytes(args, call.options),
                           arguments,
                           [&](const attention::Options& options, std::span<std::byte> workspace) {
                             attention::backward(args, options, workspace);
                           });
    ASSERT_TRUE(untouched(call.dq) && untouched(call.dk) && untouched(call.dv)) << number;
  }
}

}  // namespace
}  // namespace mxfa::testing
