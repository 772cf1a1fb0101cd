#include "model/tensor_map.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

#include "expect_fault.h"

namespace mxfa::emu::model {
namespace {

// A valid rank-3 map whose single fields each test spoils.
struct Valid {
  std::array<std::uint64_t, 5> dims{64, 100, 7, 3, 2};
  std::array<std::uint64_t, 4> strides{128, 128 * 100, 128 * 700, 128 * 2100};
  std::array<std::uint32_t, 5> box{64, 8, 2, 1, 1};
  std::array<std::uint32_t, 5> steps{1, 1, 1, 1, 1};
  TiledArguments arguments{.data_type = 9,  // BFLOAT16
                           .rank = 3,
                           .global_address = 0x1000,
                           .global_dim = {},
                           .global_strides = {},
                           .box_dim = {},
                           .element_strides = {},
                           .interleave = 0,
                           .swizzle = 3,
                           .l2_promotion = 2,
                           .oob_fill = 0};
  TensorMapRecord encode() {
    arguments.global_dim = dims;
    arguments.global_strides = strides;
    arguments.box_dim = box;
    arguments.element_strides = steps;
    return encode_tiled(arguments);
  }
};

std::string spoiled(const std::function<void(Valid&)>& spoil) {
  Valid valid;
  spoil(valid);
  return message_of([&] { valid.encode(); });
}

TEST(TensorMap, RoundTrip) {
  Valid valid;
  const TensorMap map = decode_tensor_map(valid.encode());
  EXPECT_EQ(map.type, TensorType::kBF16);
  EXPECT_EQ(map.rank, 3);
  EXPECT_EQ(map.address, 0x1000u);
  EXPECT_EQ(map.dims[1], 100u);
  EXPECT_EQ(map.strides[0], 2u);
  EXPECT_EQ(map.strides[1], 128u);
  EXPECT_EQ(map.strides[2], 12800u);
  EXPECT_EQ(map.box[0], 64u);
  EXPECT_EQ(map.swizzle, Swizzle::k128B);
  EXPECT_EQ(map.l2_promotion, 2);
  EXPECT_FALSE(map.fill_nan);
  EXPECT_EQ(map.box_bytes(), 64u * 8 * 2 * 2);
}

TEST(TensorMap, StepsThinOutTheBox) {
  Valid valid;
  valid.box[1] = 9;
  valid.steps = {5, 4, 1, 1, 1};  // the first is ignored
  const TensorMap map = decode_tensor_map(valid.encode());
  EXPECT_EQ(map.box_elems(0), 64u);
  EXPECT_EQ(map.box_elems(1), 3u);
}

TEST(TensorMap, LargestValuesAreAccepted) {
  EXPECT_EQ(spoiled([](Valid& v) { v.dims[1] = std::uint64_t{1} << 32; }), "no error");
  EXPECT_EQ(spoiled([](Valid& v) { v.strides[1] = (std::uint64_t{1} << 40) - 16; }), "no error");
  EXPECT_EQ(spoiled([](Valid& v) {
              v.box[1] = 1;
              v.box[2] = 256;
            }),
            "no error");
  EXPECT_EQ(spoiled([](Valid& v) { v.arguments.rank = 5; }), "no error");
}

TEST(TensorMap, EveryConstraintNamesItsArgument) {
  const struct {
    std::function<void(Valid&)> spoil;
    const char* message;
  } cases[] = {
      {[](Valid& v) { v.arguments.data_type = 16; }, "tensorDataType: expected 0..15, got 16"},
      {[](Valid& v) { v.arguments.rank = 0; }, "tensorRank: expected 1..5, got 0"},
      {[](Valid& v) { v.arguments.rank = 6; }, "tensorRank: expected 1..5, got 6"},
      {[](Valid& v) { v.arguments.global_address = 0x1008; },
       "globalAddress: expected a multiple of 16, got 0x1008"},
      {[](Valid& v) { v.dims[2] = 0; }, "globalDim[2]: expected 1..4294967296, got 0"},
      {[](Valid& v) { v.dims[0] = (std::uint64_t{1} << 32) + 1; }, "globalDim[0]: expected 1.."},
      {[](Valid& v) { v.strides[0] = 136; }, "globalStrides[0]: expected a multiple of 16"},
      {[](Valid& v) { v.strides[1] = std::uint64_t{1} << 40; }, "globalStrides[1]: expected less"},
      {[](Valid& v) { v.box[1] = 0; }, "boxDim[1]: expected 1..256, got 0"},
      {[](Valid& v) { v.box[1] = 257; }, "boxDim[1]: expected 1..256, got 257"},
      {[](Valid& v) { v.box[0] = 65536 + 64; }, "boxDim[0]: expected 1..256, got 65600"},
      {[](Valid& v) { v.box[0] = 12; }, "boxDim[0]: expected an inner dimension of a multiple"},
      {[](Valid& v) { v.box[0] = 72; }, "boxDim[0]: expected at most 128 bytes"},
      {[](Valid& v) { v.arguments.swizzle = 2; }, "boxDim[0]: expected at most 64 bytes"},
      {[](Valid& v) { v.arguments.swizzle = 1; }, "boxDim[0]: expected at most 32 bytes"},
      {[](Valid& v) { v.steps[1] = 9; }, "elementStrides[1]: expected 1..8, got 9"},
      {[](Valid& v) { v.steps[2] = 0; }, "elementStrides[2]: expected 1..8, got 0"},
      {[](Valid& v) { v.arguments.interleave = 3; }, "interleave: expected 0..2, got 3"},
      {[](Valid& v) { v.arguments.interleave = 1; }, "interleave: not modelled: INTERLEAVE_16B"},
      {[](Valid& v) { v.arguments.interleave = 2; }, "interleave: not modelled: INTERLEAVE_32B"},
      {[](Valid& v) {
         v.arguments.interleave = 1;
         v.arguments.rank = 2;
       },
       "tensorRank: expected"},
      {[](Valid& v) { v.arguments.swizzle = 7; }, "swizzle: expected 0..6, got 7"},
      {[](Valid& v) { v.arguments.swizzle = 5; }, "swizzle: not modelled: 128B_ATOM_32B_FLIP_8B"},
      {[](Valid& v) { v.arguments.l2_promotion = 4; }, "l2Promotion: expected 0..3, got 4"},
      {[](Valid& v) { v.arguments.oob_fill = 2; }, "oobFill: expected 0..1, got 2"},
      {[](Valid& v) {
         v.arguments.oob_fill = 1;
         v.arguments.data_type = 1;
       },
       "oobFill: expected NONE"},
  };
  for (const auto& one : cases) {
    const std::string text = spoiled(one.spoil);
    EXPECT_NE(text.find(one.message), std::string::npos) << text << "\nwanted " << one.message;
  }
}

TEST(TensorMap, PackedTypesHaveTheirOwnRules) {
  const auto packed = [](std::uint32_t type, const std::function<void(Valid&)>& spoil) {
    return spoiled([&](Valid& v) {
      v.arguments.data_type = type;
      v.dims[0] = 256;
      v.box[0] = 128;
      spoil(v);
    });
  };
  const auto nothing = [](Valid&) {};
  for (const std::uint32_t type : {14u, 15u}) {
    EXPECT_EQ(packed(type, nothing), "no error");
    EXPECT_NE(packed(type, [](Valid& v) { v.dims[0] = 64; }).find("globalDim[0]"),
              std::string::npos);
    EXPECT_NE(packed(type, [](Valid& v) { v.box[0] = 64; }).find("boxDim[0]: expected 128"),
              std::string::npos);
    EXPECT_NE(packed(type, [](Valid& v) { v.arguments.global_address = 16; })
                  .find("globalAddress: expected a multiple of 32"),
              std::string::npos);
    EXPECT_NE(packed(type, [](Valid& v) { v.strides[0] = 144; }).find("globalStrides[0]"),
              std::string::npos);
    EXPECT_NE(packed(type, [](Valid& v) { v.arguments.swizzle = 2; }).find("swizzle"),
              std::string::npos);
  }
  EXPECT_NE(packed(13, [](Valid& v) { v.dims[0] = 33; }).find("globalDim[0]"), std::string::npos);
}

// What the driver of an H200 accepted and refused.
TEST(TensorMap, AsTheDriverDecides) {
  const auto two = [](const std::function<void(Valid&)>& spoil) {
    return spoiled([&](Valid& v) {
             v.arguments.data_type = 0;
             v.arguments.rank = 2;
             v.arguments.swizzle = 0;
             v.arguments.sm_100 = false;
             v.dims[0] = 64;
             v.box = {64, 4, 1, 1, 1};
             spoil(v);
           }) == "no error";
  };
  EXPECT_TRUE(two([](Valid&) {}));
  EXPECT_TRUE(two([](Valid& v) { v.strides[0] = 0; }));
  EXPECT_TRUE(two([](Valid& v) { v.strides[0] = 16; }));
  EXPECT_FALSE(two([](Valid& v) { v.strides[0] = 72; }));
  EXPECT_FALSE(two([](Valid& v) { v.steps[0] = 0; }));
  EXPECT_FALSE(two([](Valid& v) { v.steps[0] = 9; }));
  EXPECT_FALSE(two([](Valid& v) { v.arguments.swizzle = 4; }));
  EXPECT_FALSE(two([](Valid& v) { v.arguments.swizzle = 6; }));
  EXPECT_FALSE(two([](Valid& v) {
    v.arguments.data_type = 14;
    v.dims[0] = v.box[0] = 128;
  }));
  EXPECT_TRUE(two([](Valid& v) { v.arguments.global_address = 0; }));
  const auto box = [&](std::uint32_t type, std::uint32_t rows, std::uint32_t planes) {
    return two([&](Valid& v) {
      v.arguments.data_type = type;
      v.arguments.rank = 3;
      v.box = {256, rows, planes, 1, 1};
    });
  };
  EXPECT_TRUE(box(0, 256, 1));
  EXPECT_TRUE(box(0, 224, 4));
  EXPECT_FALSE(box(0, 232, 4));
  EXPECT_TRUE(box(7, 224, 1));
  EXPECT_FALSE(box(7, 232, 1));
  EXPECT_TRUE(box(8, 112, 1));
  EXPECT_FALSE(box(8, 120, 1));
}

TEST(TensorMap, ForeignBytesAreRefused) {
  TensorMapRecord record{};
  expect_fault([&] { decode_tensor_map(record); }, "written by cuTensorMapEncodeTiled");
}

TEST(TensorMap, MissingArraysAreRefused) {
  Valid valid;
  valid.encode();
  TiledArguments arguments = valid.arguments;
  arguments.global_strides = arguments.global_strides.first(1);
  expect_fault([&] { encode_tiled(arguments); }, "globalStrides: expected 2 entries, got 1");
}

TEST(TensorMapReplace, EachField) {
  Valid valid;
  TensorMapRecord record = valid.encode();
  replace_field(record, TensorMapField::kGlobalAddress, 0, 0x2000);
  replace_field(record, TensorMapField::kGlobalDim, 1, 55);
  replace_field(record, TensorMapField::kGlobalStride, 0, 256);
  replace_field(record, TensorMapField::kBoxDim, 1, 16);
  replace_field(record, TensorMapField::kElementStride, 1, 2);
  replace_field(record, TensorMapField::kElemtype, 0, 6);  // .f16
  replace_field(record, TensorMapField::kSwizzleAtomicity, 0, 1);
  replace_field(record, TensorMapField::kFillMode, 0, 1);
  replace_field(record, TensorMapField::kRank, 0, 1);  // rank 2
  const TensorMap map = decode_tensor_map(record);
  EXPECT_EQ(map.address, 0x2000u);
  EXPECT_EQ(map.dims[1], 55u);
  EXPECT_EQ(map.strides[1], 256u);
  EXPECT_EQ(map.box[1], 16u);
  EXPECT_EQ(map.steps[1], 2u);
  EXPECT_EQ(map.type, TensorType::kF16);
  EXPECT_EQ(map.swizzle, Swizzle::k128BAtom32);
  EXPECT_TRUE(map.fill_nan);
  EXPECT_EQ(map.rank, 2);
}

TEST(TensorMapReplace, ElementTypesAreNumberedOtherwiseThanInTheDriver) {
  const TensorType types[] = {TensorType::kU8,     TensorType::kU16,  TensorType::kU32,
                              TensorType::kS32,    TensorType::kU64,  TensorType::kS64,
                              TensorType::kF16,    TensorType::kF32,  TensorType::kF32Ftz,
                              TensorType::kF64,    TensorType::kBF16, TensorType::kTF32,
                              TensorType::kTF32Ftz};
  for (std::uint32_t code = 0; code < std::size(types); ++code) {
    Valid valid;
    valid.box[0] = 16;
    TensorMapRecord record = valid.encode();
    replace_field(record, TensorMapField::kElemtype, 0, code);
    EXPECT_EQ(decode_tensor_map(record).type, types[code]) << code;
  }
}

TEST(TensorMapReplace, BadValues) {
  Valid valid;
  TensorMapRecord record = valid.encode();
  const auto replace = [&](TensorMapField field, std::uint32_t ordinal, std::uint64_t value) {
    return message_of([&] { replace_field(record, field, ordinal, value); });
  };
  EXPECT_NE(replace(TensorMapField::kGlobalDim, 1, 0).find("globalDim[1]"), std::string::npos);
  EXPECT_NE(replace(TensorMapField::kGlobalDim, 5, 1).find("ord: expected 0..4"),
            std::string::npos);
  EXPECT_NE(replace(TensorMapField::kGlobalStride, 4, 16).find("ord: expected 0..3"),
            std::string::npos);
  EXPECT_NE(replace(TensorMapField::kRank, 0, 5).find("rank"), std::string::npos);
  EXPECT_NE(replace(TensorMapField::kGlobalAddress, 0, 8).find("globalAddress"), std::string::npos);
  EXPECT_NE(replace(TensorMapField::kElemtype, 0, 16).find("elemtype"), std::string::npos);
  EXPECT_NE(replace(TensorMapField::kSwizzleMode, 0, 5).find("swizzle_mode"), std::string::npos);
  // Valid by itself, wrong together with the box: told where the map is used.
  replace_field(record, TensorMapField::kSwizzleMode, 0, 1);
  expect_fault([&] { decode_tensor_map(record); }, "boxDim[0]: expected at most 32 bytes");
  replace_field(record, TensorMapField::kSwizzleMode, 0, 4);
  expect_fault([&] { decode_tensor_map(record); }, "swizzle: not modelled: 96B mode");
}

}  // namespace
}  // namespace mxfa::emu::model
