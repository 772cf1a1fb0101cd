#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "io/safetensors.h"
#include "mxfa/quantize.h"
#include "support/program.h"

namespace mxfa::cli {
namespace {

using Shape = std::vector<std::int64_t>;

io::HostTensor random_tensor(DType dtype, const Shape& shape, unsigned seed) {
  std::mt19937 rng(seed);
  io::HostTensor count = io::HostTensor::zeros(DType::kU8, shape);
  std::vector<float> values(count.bytes.size());
  for (float& value : values) {
    const int exponent = static_cast<int>(rng() % 12) - 6;
    value = std::ldexp(static_cast<float>(rng() % 4096) - 2048.0F, exponent - 10);
  }
  return io::from_f32(values, dtype, shape);
}

io::HostTensor offsets_tensor(const std::vector<std::int32_t>& values) {
  io::HostTensor tensor =
      io::HostTensor::zeros(DType::kI32, Shape{static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.view().data));
  return tensor;
}

class QuantizeCommand : public ProgramTest {
 protected:
  /// x: [70, 2, 40] in sequences of 33, 0 and 37 tokens; w: [64, 96]; b: [2, 40, 1, 32].
  void SetUp() override {
    ProgramTest::SetUp();
    x_ = random_tensor(DType::kBF16, {70, 2, 40}, 1);
    w_ = random_tensor(DType::kF32, {64, 96}, 2);
    b_ = random_tensor(DType::kF16, {2, 40, 1, 32}, 3);
    cu_ = offsets_tensor({0, 33, 33, 70});
    const std::vector<io::NamedTensor> named = {
        {"x", x_.view()}, {"w", w_.view()}, {"b", b_.view()}, {"cu", cu_.view()}};
    io::write_safetensors(path("in"), named, {{"from", "test"}});
  }

  io::HostTensor x_, w_, b_, cu_;
};

struct Variant {
  const char* block;
  BlockShape block_shape;
  const char* rule;
  ScaleRule scale_rule;
  const char* format;
  DType dtype;
  const char* layout;
  ScaleLayout scale_layout;
  const char* axis;
  ScaleAxis scale_axis;
};

constexpr Variant kVariants[] = {
    {"1x32", BlockShape::k1x32, "up", ScaleRule::kRoundUp, "e4m3", DType::kE4M3, "compact",
     ScaleLayout::kRowMajor, "head_dim", ScaleAxis::kHeadDim},
    {"32x1", BlockShape::k32x1, "floor", ScaleRule::kFloor, "e5m2", DType::kE5M2, "tiled",
     ScaleLayout::kTiled128x4, "tokens", ScaleAxis::kTokens},
    {"32x32", BlockShape::k32x32, "up", ScaleRule::kRoundUp, "e4m3", DType::kE4M3, "tiled",
     ScaleLayout::kTiled128x4, "tokens", ScaleAxis::kTokens},
    {"32xD", BlockShape::k32xD, "floor", ScaleRule::kFloor, "e4m3", DType::kE4M3, "compact",
     ScaleLayout::kRowMajor, "head_dim", ScaleAxis::kHeadDim},
    {"1xD", BlockShape::k1xD, "up", ScaleRule::kRoundUp, "e5m2", DType::kE5M2, "tiled",
     ScaleLayout::kTiled128x4, "head_dim", ScaleAxis::kHeadDim},
};

TEST_F(QuantizeCommand, RoundTripEqualsTheLibrary) {
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(v.block);
    const Outcome quantized =
        run({"quantize", "--input", path("in"), "--output", path("mx"), "--tensor", "x",
             "--cu-seqlens", "cu", "--block", v.block, "--rule", v.rule, "--format", v.format,
             "--scale-layout", v.layout, "--scale-axis", v.axis});
    ASSERT_EQ(quantized.status, 0) << quantized.err;
    QuantizeOptions options{.block_shape = v.block_shape,
                            .rule = v.scale_rule,
                            .format = v.dtype,
                            .layout = v.scale_layout,
                            .scale_axis = v.scale_axis,
                            .cu_seqlens = cu_.view()};
    io::HostTensor payload = io::HostTensor::zeros(v.dtype, x_.shape);
    io::HostTensor scales = io::HostTensor::zeros(DType::kE8M0, scale_shape(x_.shape, options));
    quantize(x_.view(), payload.view(), scales.view(), options);
    const auto mx = io::SafetensorsReader::open(path("mx"));
    EXPECT_EQ(mx.read("x").dtype, v.dtype);
    EXPECT_EQ(mx.read("x").bytes, payload.bytes);
    EXPECT_EQ(mx.read("x.scale").shape, scales.shape);
    EXPECT_EQ(mx.read("x.scale").bytes, scales.bytes);
    EXPECT_EQ(mx.read("w").bytes, w_.bytes) << "a tensor that was not asked for was changed";
    EXPECT_EQ(mx.read("cu").bytes, cu_.bytes);

    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<std::string> arguments = {"dequantize", "--input", path("mx"), "--output",
                                            path("back")};
      if (dtype == DType::kF32) arguments.insert(arguments.end(), {"--dtype", "f32"});
      const Outcome dequantized = run(arguments);
      ASSERT_EQ(dequantized.status, 0) << dequantized.err;
      io::HostTensor want = io::HostTensor::zeros(dtype, x_.shape);
      dequantize(payload.view(), scales.view(), want.view(), options);
      const auto back = io::SafetensorsReader::open(path("back"));
      EXPECT_EQ(back.read("x").dtype, dtype);
      EXPECT_EQ(back.read("x").bytes, want.bytes);
      EXPECT_EQ(back.find("x.scale"), nullptr);
      EXPECT_EQ(back.metadata(), (io::Metadata{{"from", "test"}}));
    }
  }
}

TEST_F(QuantizeCommand, EveryRankAndDtypeByDefault) {
  const Outcome outcome =
      run({"quantize", "--input", path("in"), "--output", path("mx"), "--json", path("j")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto mx = io::SafetensorsReader::open(path("mx"));
  EXPECT_EQ(mx.read("w").dtype, DType::kE4M3);
  EXPECT_EQ(mx.read("w.scale").shape, (Shape{2, 3}));
  // Two sequences of 40 rows are four groups of 32, not the three of 80 rows.
  EXPECT_EQ(mx.read("b.scale").shape, (Shape{4, 1, 1}));
  EXPECT_EQ(mx.read("b").shape, b_.shape);
  EXPECT_EQ(mx.read("x.scale").shape, (Shape{3, 2, 2}));
  EXPECT_EQ(mx.read("cu").dtype, DType::kI32);
  ASSERT_EQ(run({"dequantize", "--input", path("mx"), "--output", path("back")}).status, 0);
  const auto back = io::SafetensorsReader::open(path("back"));
  for (const auto& [name, original] : {std::pair{"x", &x_}, {"w", &w_}, {"b", &b_}}) {
    EXPECT_EQ(back.read(name).dtype, original->dtype) << name;
    EXPECT_EQ(back.read(name).shape, original->shape) << name;
  }
  const auto json = nlohmann::json::parse(file_text(path("j")));
  ASSERT_EQ(json.size(), 3U);
  for (const auto& record : json) {
    EXPECT_EQ(record["routine"], "quantize");
    EXPECT_EQ(record["mx"]["block"], "32x32");
    const std::string name = record["tensor"];
    const double db = record["sqnr_db"][name];
    EXPECT_GT(db, 20) << name;
    EXPECT_LT(db, 40) << name;
    EXPECT_NE(outcome.out.find(std::to_string(record["bytes_out"].get<int>())), std::string::npos);
  }
}

TEST_F(QuantizeCommand, SecondRunKeepsTheFirst) {
  ASSERT_EQ(
      run({"quantize", "--input", path("in"), "--output", path("mx"), "--tensor", "w"}).status, 0);
  ASSERT_EQ(
      run({"quantize", "--input", path("mx"), "--output", path("both"), "--tensor", "x"}).status,
      0);
  const Outcome outcome = run({"dequantize", "--input", path("both"), "--output", path("back")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto back = io::SafetensorsReader::open(path("back"));
  EXPECT_EQ(back.read("w").dtype, DType::kF32);
  EXPECT_EQ(back.read("x").dtype, DType::kBF16);
  expect_refused({"quantize", "--input", path("mx"), "--output", path("y"), "--tensor", "w"},
                 "w: expected f32, f16 or bf16 with 2 to 4 dimensions, got F8_E4M3 [64, 96]");
}

TEST_F(QuantizeCommand, BadUsageIsRefusedAndNothingIsWritten) {
  const auto refused = [&](std::vector<std::string> more, const std::string& want) {
    std::vector<std::string> arguments = {"quantize", "--input", path("in"), "--output",
                                          path("out")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(arguments, want);
  };
  refused({"--block", "16x16"}, "block: expected 1x32, 32x1, 32x32, 32xD, 1xD, got '16x16'");
  refused({"--rule", "down"}, "rule: expected up, floor, got 'down'");
  refused({"--format", "e3m4"}, "format: expected e4m3, e5m2, got 'e3m4'");
  refused({"--scale-layout", "round"}, "layout: expected compact, tiled");
  refused({"--scale-layout", "tiled", "--scale-axis", "up"}, "axis: expected head_dim, tokens");
  refused({"--scale-layout", "tiled", "--scale-axis", "tokens", "--block", "1x32"}, "1x32");
  refused({"--scale-axis", "tokens"},
          "scale-axis: expected head_dim without --scale-layout tiled, got 'tokens'");
  refused({"--tensor", "y"}, "no tensor 'y'; the file has: ");
  refused({"--tensor", "cu"}, "cu: expected f32, f16 or bf16 with 2 to 4 dimensions, got I32 [4]");
  refused({"--tensor", "x", "--cu-seqlens", "x"}, "cu_seqlens");
  refused({"--tensor", "x", "--cu-seqlens", "nothing"}, "no tensor 'nothing'");
  refused({"--tensor", "b", "--cu-seqlens", "cu"}, "b: expected a packed tensor");
  refused({"--tensor", "w", "--cu-seqlens", "cu"}, "at most 64 (the rows given), got 70");
  refused({"--json", path("out")}, "json: expected another file than --output");
  refused({"--json", path("../work/./out")}, "json: expected another file than --output");
  refused({"--json", ""}, "expected the name of a file");
  expect_refused({"quantize", "--input", path("in"), "--output", path("no/where")},
                 "no/where: cannot write");
  expect_refused({"quantize", "--input", path("none"), "--output", path("out")},
                 "none: cannot read");
}

TEST_F(QuantizeCommand, TheInputIsNeverOverwritten) {
  const std::string original = file_text(path("in"));
  std::filesystem::create_symlink(path("in"), path("link"));
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& option) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << option;
    EXPECT_THAT(outcome.err, testing::HasSubstr(option + ": expected another file than --input"));
    EXPECT_EQ(file_text(path("in")), original);
  };
  refused({"quantize", "--input", path("in"), "--output", path("in")}, "output");
  refused({"quantize", "--input", path("in"), "--output", path("link")}, "output");
  refused({"quantize", "--input", path("link"), "--output", path("in")}, "output");
  refused({"quantize", "--input", path("in"), "--output", path("o"), "--json", path("in")}, "json");
  refused({"info", path("in"), "--json", path("in")}, "json");
  ASSERT_EQ(run({"quantize", "--input", path("in"), "--output", path("mx")}).status, 0);
  const std::string quantized = file_text(path("mx"));
  EXPECT_EQ(run({"dequantize", "--input", path("mx"), "--output", path("mx")}).status, 2);
  EXPECT_EQ(file_text(path("mx")), quantized);
}

TEST_F(QuantizeCommand, OffsetsOfADumpAreFoundByItsNames) {
  const io::HostTensor k = random_tensor(DType::kBF16, {60, 1, 32}, 4);
  const io::HostTensor cu_k = offsets_tensor({0, 1, 40, 60});
  const std::vector<io::NamedTensor> dump = {{"q", x_.view()},
                                             {"k", k.view()},
                                             {"bias", w_.view()},
                                             {"cu_seqlens_q", cu_.view()},
                                             {"cu_seqlens_k", cu_k.view()}};
  io::write_safetensors(path("in"), dump, {});
  ASSERT_EQ(run({"quantize", "--input", path("in"), "--output", path("mx")}).status, 0);
  const auto mx = io::SafetensorsReader::open(path("mx"));
  EXPECT_EQ(mx.read("q.scale").shape, (Shape{4, 2, 2})) << "2 + 0 + 2 groups";
  EXPECT_EQ(mx.read("k.scale").shape, (Shape{4, 1, 1})) << "1 + 2 + 1 groups";
  EXPECT_EQ(mx.read("bias.scale").shape, (Shape{2, 3}));
  ASSERT_EQ(run({"dequantize", "--input", path("mx"), "--output", path("back")}).status, 0);
  EXPECT_EQ(run({"quantize", "--input", path("in"), "--output", path("mx"), "--tensor", "q",
                 "--cu-seqlens", "none"})
                .status,
            0);
  EXPECT_EQ(io::SafetensorsReader::open(path("mx")).read("q.scale").shape, (Shape{3, 2, 2}));

  const std::vector<io::NamedTensor> unclear = {{"x", x_.view()}, {"cu_seqlens_q", cu_.view()}};
  io::write_safetensors(path("in"), unclear, {});
  expect_refused({"quantize", "--input", path("in"), "--output", path("out")},
                 "x: expected --cu-seqlens NAME (or none)");
}

TEST_F(QuantizeCommand, BadOffsetsAreRefusedByPosition) {
  const std::vector<std::pair<std::vector<std::int32_t>, std::string>> cases = {
      {{1, 70}, "cu_seqlens[0]: expected 0, got 1"},
      {{0, 71}, "cu_seqlens[1]: expected at most 70"},
      {{0, 3, 2, 70}, "cu_seqlens[2]: expected at least 3, got 2"},
      {{0, -1, 70}, "cu_seqlens[1]: expected at least 0, got -1"}};
  for (const auto& [offsets, want] : cases) {
    const io::HostTensor cu = offsets_tensor(offsets);
    const std::vector<io::NamedTensor> named = {{"x", x_.view()}, {"cu", cu.view()}};
    io::write_safetensors(path("in"), named, {});
    expect_refused({"quantize", "--input", path("in"), "--output", path("out"), "--tensor", "x",
                    "--cu-seqlens", "cu"},
                   want);
  }
}

TEST_F(QuantizeCommand, BrokenMetadataAreRefused) {
  ASSERT_EQ(
      run({"quantize", "--input", path("in"), "--output", path("mx"), "--tensor", "w"}).status, 0);
  const auto mx = io::SafetensorsReader::open(path("mx"));
  const io::HostTensor payload = mx.read("w");
  const io::HostTensor scales = mx.read("w.scale");
  const auto rewritten = [&](const std::string& metadata, const io::HostTensor& scale) {
    const std::vector<io::NamedTensor> named = {{"w", payload.view()}, {"w.scale", scale.view()}};
    io::write_safetensors(path("bad"), named, {{"mxfa.w", metadata}});
  };
  const auto refused = [&](const std::string& want) {
    expect_refused({"dequantize", "--input", path("bad"), "--output", path("out")}, want);
  };
  const std::string good = mx.metadata().at("mxfa.w");
  rewritten("{", scales);
  refused("metadata mxfa.w: expected a JSON object");
  rewritten("{\"block\": 3}", scales);
  refused("metadata mxfa.w: expected a JSON object");
  std::string other = good;
  other.replace(other.find("32x32"), 5, "33x33");
  rewritten(other, scales);
  refused("metadata mxfa.w: block: expected 1x32");
  other = good;
  other.replace(other.find("e4m3"), 4, "e5m2");
  rewritten(other, scales);
  refused("w: expected dtype e5m2 as its metadata say, got e4m3");
  rewritten(good, io::HostTensor::zeros(DType::kE8M0, Shape{3, 2}));
  refused("w.scale: expected e8m0 [2, 3], got e8m0 [3, 2]");
  const std::vector<io::NamedTensor> alone = {{"w", payload.view()}};
  io::write_safetensors(path("bad"), alone, {{"mxfa.w", good}});
  refused("no tensor 'w.scale'; the file has: w");
  expect_refused({"dequantize", "--input", path("in"), "--output", path("out")},
                 "no tensor is quantized");
}

TEST_F(QuantizeCommand, NanStaysLoud) {
  w_ = io::from_f32(std::vector<float>(64 * 32, std::numeric_limits<float>::quiet_NaN()),
                    DType::kF32, Shape{64, 32});
  const std::vector<io::NamedTensor> named = {{"w", w_.view()}};
  io::write_safetensors(path("in"), named, {});
  const Outcome outcome =
      run({"quantize", "--input", path("in"), "--output", path("mx"), "--json", path("j")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const std::byte scale : io::SafetensorsReader::open(path("mx")).read("w.scale").bytes) {
    EXPECT_EQ(scale, std::byte{0xFF});
  }
  EXPECT_TRUE(nlohmann::json::parse(file_text(path("j")))[0]["sqnr_db"]["w"].is_null());
}

}  // namespace
}  // namespace mxfa::cli
