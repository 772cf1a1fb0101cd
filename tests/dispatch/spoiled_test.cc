#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dispatch/tensors.h"
#include "mxfa/quantize.h"
#include "support/spoiled.h"

/// Calls of quantize() and dequantize() with one argument spoiled at random: refused by name, and
/// nothing written.
namespace mxfa::testing {
namespace {

using Role = Argument::Role;

Spoiled spoil_options(Rng& rng, QuantizeOptions& options) {
  switch (rng.integer(0, 4)) {
    case 0:
      options.block_shape = static_cast<BlockShape>(9);
      return {"block_shape", {"block_shape"}};
    case 1:
      options.layout = static_cast<ScaleLayout>(9);
      return {"layout", {"layout"}};
    case 2:
      options.rule = static_cast<ScaleRule>(9);
      return {"rule", {"rule"}};
    case 3:
      options.scale_axis = static_cast<ScaleAxis>(9);
      return {"scale_axis", {"scale_axis"}};
    default:
      options.max_seqlen = rng.integer(0, 34);
      return {"cu_seqlens", {"cu_seqlens"}};
  }
}

TEST(QuantizeSpoiled, NamesTheArgument) {
  const BlockShape shapes[] = {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                               BlockShape::k32xD, BlockShape::k1xD};
  for (std::uint64_t number = 0; number < 4000; ++number) {
    Rng rng(number);
    std::vector<std::int32_t> offsets{0, 5, 40};
    QuantizeOptions options{.block_shape = shapes[rng.integer(0, 4)]};
    options.cu_seqlens = make_tensor(offsets.data(), DType::kI32, {3});
    const bool back = rng.integer(0, 1) == 1;
    OwnedTensor values(back ? DType::kF32 : DType::kBF16, {40, 2, 64});
    OwnedTensor payload(DType::kE4M3, {40, 2, 64});
    OwnedTensor scales(DType::kE8M0, scale_shape(values.view().dims(), options));
    TensorView in = values.view(), codes = payload.view(), sf = scales.view();
    const Role of_input = back ? Role::kOutput : Role::kInput;
    const Role of_codes = back ? Role::kInput : Role::kOutput;
    Spoiled spoiled;
    const std::int64_t way = rng.integer(0, 9);
    if (way == 0) {
      spoiled = spoil_options(rng, options);
      if (back && spoiled.names[0] == "rule") continue;  // ignored there
    } else if (way == 1) {
      spoiled = spoil_offsets(rng, offsets, 40, "cu_seqlens");
    } else {
      spoiled = spoil(rng, {{back ? "output" : "input", &in, of_input},
                            {"payload", &codes, of_codes},
                            {"scales", &sf, of_codes, false},
                            {"cu_seqlens", &*options.cu_seqlens, Role::kOffsets, false}});
    }
    spoiled.what = fmt::format("{}: {}", number, spoiled.what);
    expect_refused(spoiled, [&] {
      back ? dequantize(codes, sf, in, options) : quantize(in, codes, sf, options);
    });
    for (OwnedTensor* tensor : {&values, &payload, &scales}) {
      ASSERT_TRUE(tensor->guards_intact());
      ASSERT_TRUE(std::ranges::all_of(tensor->bytes(), [](std::uint8_t b) { return b == 0xFF; }));
    }
  }
}

}  // namespace
}  // namespace mxfa::testing
