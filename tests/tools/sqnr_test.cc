#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/safetensors.h"
#include "io/xml_check.h"
#include "reference/attention.h"
#include "reference/datasets.h"
#include "reference/recipe/recipe.h"
#include "support/program.h"

namespace mxfa::cli {
namespace {

using Json = nlohmann::json;
using Shape = std::vector<std::int64_t>;

constexpr const char* kTensors[] = {"S", "P", "O", "dV", "dP", "dS", "dQ", "dK"};

io::HostTensor offsets_tensor(const std::vector<std::int64_t>& values, DType dtype = DType::kI32) {
  io::HostTensor tensor = io::HostTensor::zeros(dtype, Shape{std::int64_t(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kI64) {
      static_cast<std::int64_t*>(tensor.view().data)[i] = values[i];
    } else {
      static_cast<std::int32_t*>(tensor.view().data)[i] = static_cast<std::int32_t>(values[i]);
    }
  }
  return tensor;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Runs of white space as one space: the program wraps long lines.
std::string one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  return line;
}

/// The printed line that begins with `start`, white space aside; empty where there is none.
std::string line_with(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (one_line(line).rfind(start, 0) == 0) return line;
  }
  return "";
}

/// Tensors of an attention call; a test changes what it wants and saves them.
struct Dump {
  io::HostTensor q, k, v, dout;
  std::map<std::string, io::HostTensor> more = {};
  bool with_dout = true;

  void save(const std::string& path) const {
    std::vector<io::NamedTensor> named = {{"q", q.view()}, {"k", k.view()}, {"v", v.view()}};
    if (with_dout) named.push_back({"dout", dout.view()});
    for (const auto& [name, tensor] : more) named.push_back({name, tensor.view()});
    io::write_safetensors(path, named, {});
  }
};

/// [batch, 24, 4, 32] queries and [batch, 40, 2, 32] keys, values of N(0, 1).
Dump batched_dump(std::int64_t batch, DType dtype = DType::kBF16) {
  const auto draw = [&](std::int64_t rows, std::int64_t heads, std::uint64_t seed) {
    const reference::HeadInputs drawn = reference::make_dataset(
        "normal", {.seqlen_q = batch * rows * heads, .seqlen_k = 0, .head_dim = 32, .seed = seed});
    return io::from_f32(drawn.q.data, dtype, Shape{batch, rows, heads, 32});
  };
  return {.q = draw(24, 4, 1), .k = draw(40, 2, 2), .v = draw(40, 2, 3), .dout = draw(24, 4, 4)};
}

Dump packed_dump(std::int64_t batch) {
  Dump dump = batched_dump(batch);
  for (io::HostTensor* tensor : {&dump.q, &dump.k, &dump.v, &dump.dout}) {
    tensor->shape = {tensor->shape[0] * tensor->shape[1], tensor->shape[2], tensor->shape[3]};
  }
  std::vector<std::int64_t> cu_q;
  std::vector<std::int64_t> cu_k;
  for (std::int64_t s = 0; s <= batch; ++s) {
    cu_q.push_back(24 * s);
    cu_k.push_back(40 * s);
  }
  dump.more["cu_seqlens_q"] = offsets_tensor(cu_q);
  dump.more["cu_seqlens_k"] = offsets_tensor(cu_k);
  return dump;
}

class SqnrCommand : public ProgramTest {
 protected:
  /// Runs on `dump`, expects success, and returns the records.
  Json measure(const Dump& dump, std::vector<std::string> more = {}) {
    dump.save(path("in"));
    std::vector<std::string> arguments = {"sqnr", "--input", path("in"), "--json", path("j.svg")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    outcome_ = run(arguments);
    EXPECT_EQ(outcome_.status, 0) << outcome_.err;
    return outcome_.status == 0 ? Json::parse(file_text(path("j.svg"))) : Json::array();
  }

  void refused(const Dump& dump, const std::string& want, std::vector<std::string> more = {}) {
    dump.save(path("in"));
    std::vector<std::string> arguments = {"sqnr", "--input", path("in"), "--json", path("j.svg")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(arguments, want);
  }

  static std::vector<double> numbers(const Json& record) {
    std::vector<double> result;
    for (const char* tensor : kTensors) result.push_back(record["sqnr_db"][lower(tensor)]);
    return result;
  }

  Outcome outcome_;
};

TEST_F(SqnrCommand, SyntheticTableHasEveryRowAndEqualsTheRecords) {
  const Outcome outcome =
      run({"sqnr", "--synthetic", "normal", "--seqlen-q", "64", "--seqlen-k", "96", "--head-dim",
           "64", "--json", path("j.svg"), "--plot", path("p.svg"), "--reference", "kern"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json records = Json::parse(file_text(path("j.svg")));
  ASSERT_EQ(records.size(), 9U) << "eight schemes and the verdict";
  const auto cell = [](const Json& db) {
    std::ostringstream text;
    text.setf(std::ios::fixed);
    text.precision(1);
    text << db.get<double>();
    return text.str();
  };
  for (std::size_t s = 0; s + 1 < records.size(); ++s) {
    const Json& record = records[s];
    EXPECT_EQ(record["routine"], "attention_sqnr");
    EXPECT_EQ(record["case"]["seqlen_k"], 96);
    EXPECT_EQ(record["case"]["head_dim"], 64);
    std::string row = record["scheme"];
    for (const char* tensor : kTensors) row += " " + cell(record["sqnr_db"][lower(tensor)]);
    EXPECT_NE(line_with(outcome.out, row).find(record["verdict"].get<std::string>()),
              std::string::npos)
        << row << "\n"
        << outcome.out;
    row = record["scheme"];
    for (const char* tensor : kTensors) row += " " + cell(record["sqnr_kern_db"][lower(tensor)]);
    EXPECT_NE(line_with(outcome.out, row), "") << row;
    for (const Json& row_json : record["sqnr"]) EXPECT_EQ(row_json["threshold_db"], 18);
  }
  EXPECT_EQ(records[0]["scheme"], "bf16");
  EXPECT_EQ(records[2]["scheme"], "32x32");
  EXPECT_EQ(records[8]["routine"], "sqnr_verdict");
  for (const Json& line : records[8]["text"]) {
    EXPECT_NE(one_line(outcome.out).find(one_line(line)), std::string::npos) << line;
  }
  std::istringstream printed(outcome.out);
  for (std::string line; std::getline(printed, line);) EXPECT_LE(line.size(), 100U) << line;
  EXPECT_EQ(io::xml_fault(file_text(path("p.svg"))), "");
  EXPECT_NE(file_text(path("p.svg")).find("MXFP8 32x32, K smoothing"), std::string::npos);
}

/// The same numbers by the library, without the program's sampling, sums and shifts.
TEST_F(SqnrCommand, NumbersAreTheLibrarys) {
  using reference::recipe::RecipeConfig;
  const reference::HeadInputs inputs = reference::make_dataset(
      "rmsnorm", {.seqlen_q = 64, .seqlen_k = 96, .head_dim = 64, .seed = 5});
  const Outcome outcome =
      run({"sqnr", "--synthetic", "rmsnorm", "--seqlen-q", "64", "--seqlen-k", "96", "--head-dim",
           "64", "--seed", "5", "--schemes", "32xD,bf16", "--json", path("j.svg")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json records = Json::parse(file_text(path("j.svg")));
  const auto forward = reference::attention_forward(inputs);
  const auto backward = reference::attention_backward(inputs, forward);
  const auto db = [](const reference::Matrix<double>& want, const reference::Matrix<float>& got) {
    return reference::sqnr_db(want.data, {got.data.begin(), got.data.end()});
  };
  for (std::size_t s = 0; s < 2; ++s) {
    const auto step =
        reference::recipe::run_step(inputs, s == 0 ? RecipeConfig::hopper() : RecipeConfig::bf16());
    const std::vector<double> want = {db(forward.s, step.s),    db(forward.p, step.p),
                                      db(forward.o, step.o),    db(backward.dv, step.dv),
                                      db(backward.dp, step.dp), db(backward.ds, step.ds),
                                      db(backward.dq, step.dq), db(backward.dk, step.dk)};
    const std::vector<double> got = numbers(records[s]);
    for (std::size_t t = 0; t < want.size(); ++t) {
      EXPECT_NEAR(got[t], want[t], 1e-9) << records[s]["scheme"] << ' ' << kTensors[t];
    }
  }
}

TEST_F(SqnrCommand, BatchedAndPackedAgreeAndInt64OffsetsAreConverted) {
  const std::vector<std::string> some = {"--schemes", "32x32,32xD", "--causal"};
  const Json batched = measure(batched_dump(3), some);
  Dump packed = packed_dump(3);
  const Json packed32 = measure(packed, some);
  packed.more["cu_seqlens_q"] = offsets_tensor({0, 24, 48, 72}, DType::kI64);
  const Json packed64 = measure(packed, some);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(numbers(batched[s]), numbers(packed32[s]));
    EXPECT_EQ(numbers(batched[s]), numbers(packed64[s]));
    EXPECT_EQ(batched[s]["case"]["jagged"], false);
    EXPECT_EQ(packed32[s]["case"]["jagged"], true);
    EXPECT_EQ(batched[s]["case"]["num_heads_kv"], 2);
    EXPECT_EQ(batched[s]["case"]["batch"], 3);
  }
}

/// Each query head must meet its own K and V: of two heads only the second has an outlier K.
TEST_F(SqnrCommand, GroupedHeadsReadTheirOwnKeys) {
  Dump dump = packed_dump(1);
  std::vector<float> k = io::to_f32(dump.k);
  for (std::size_t i = 0; i < k.size(); ++i) {
    if (i / 32 % 2 == 1) k[i] *= 6;
  }
  dump.k = io::from_f32(k, DType::kBF16, dump.k.shape);
  const Json records = measure(dump, {"--schemes", "32x32"});
  EXPECT_GE(records[0]["worst_unit_db"]["o"]["head"], 2) << "heads 2 and 3 read kv head 1";
  const Outcome all = outcome_;
  dump.more["k2"] = dump.k;
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = 0;
  dump.k = io::from_f32(k, DType::kBF16, dump.k.shape);
  const Json renamed = measure(dump, {"--schemes", "32x32", "--k", "k2"});
  EXPECT_EQ(numbers(renamed[0]), numbers(records[0])) << "--k was not followed";
}

TEST_F(SqnrCommand, EmptySequencesAreSkipped) {
  Dump dump = packed_dump(2);
  const Json plain = measure(dump, {"--schemes", "32x32"});
  dump.more["cu_seqlens_q"] = offsets_tensor({0, 0, 24, 24, 48, 48});
  dump.more["cu_seqlens_k"] = offsets_tensor({0, 0, 40, 40, 80, 80});
  const Json gaps = measure(dump, {"--schemes", "32x32"});
  EXPECT_EQ(numbers(gaps[0]), numbers(plain[0]));
  EXPECT_EQ(gaps[0]["sampling"]["units_total"], 8);
  dump.more["cu_seqlens_q"] = offsets_tensor({0, 48, 48});
  dump.more["cu_seqlens_k"] = offsets_tensor({0, 0, 80});
  refused(dump, "there is nothing to measure");
}

TEST_F(SqnrCommand, MasksChangeTheResultAndLeakFreeIsOffered) {
  const Dump dump = batched_dump(1);
  const Json full = measure(dump, {"--schemes", "32x32"});
  const Json causal = measure(dump, {"--causal"});
  EXPECT_EQ(causal.size(), 10U) << "nine schemes and the verdict";
  EXPECT_EQ(causal[8]["scheme"], "32x32+leak-free");
  const Json top_left =
      measure(dump, {"--schemes", "32x32", "--causal", "--causal-alignment", "top-left"});
  const Json window = measure(dump, {"--schemes", "32x32", "--window", "5", "-1"});
  const Json scaled = measure(dump, {"--schemes", "32x32", "--softmax-scale", "0.5"});
  EXPECT_EQ(top_left[0]["attention"]["causal_alignment"], "top_left");
  EXPECT_EQ(window[0]["attention"]["window_left"], 5);
  EXPECT_EQ(scaled[0]["attention"]["softmax_scale"], 0.5);
  std::set<double> values;
  for (const Json& record : {full[0], causal[2], top_left[0], window[0], scaled[0]}) {
    values.insert(record["sqnr_db"]["p"].get<double>());
  }
  EXPECT_EQ(values.size(), 5U);
}

TEST_F(SqnrCommand, DoutIsDrawnWhereItIsAbsentAndTheSampleDoesNotChangeIt) {
  Dump dump = packed_dump(3);
  dump.with_dout = false;
  const Json drawn = measure(dump, {"--schemes", "32x32", "--seed", "9"});
  EXPECT_NE(outcome_.out.find("no dout given: drawn from N(0, 1), seed 9"), std::string::npos);
  EXPECT_EQ(drawn[0]["dout"], "drawn");
  EXPECT_EQ(drawn[0]["seed"], 9);
  EXPECT_EQ(numbers(measure(dump, {"--schemes", "32x32", "--seed", "9"})[0]), numbers(drawn[0]));
  EXPECT_NE(numbers(measure(dump, {"--schemes", "32x32", "--seed", "8"})[0]), numbers(drawn[0]));
}

TEST_F(SqnrCommand, SamplingIsStated) {
  const Dump dump = packed_dump(8);
  const Json records = measure(dump, {"--schemes", "32x32", "--max-pairs", "8000"});
  const Json& sampling = records[0]["sampling"];
  EXPECT_EQ(sampling["complete"], false);
  EXPECT_EQ(sampling["units"], 8);
  EXPECT_EQ(sampling["units_total"], 32);
  EXPECT_EQ(sampling["pairs"], 8 * 24 * 40);
  EXPECT_NE(one_line(outcome_.out).find(sampling["rule"].get<std::string>()), std::string::npos);
  EXPECT_NE(outcome_.out.find("8 of 32"), std::string::npos) << outcome_.out;
}

TEST_F(SqnrCommand, RequireIsExitStatus1WhereTheSchemeIsNotSafe) {
  const std::vector<std::string> biased = {"sqnr",       "--synthetic", "kbias", "--seqlen-q",
                                           "64",         "--seqlen-k",  "128",   "--schemes",
                                           "32x32,bf16", "--require"};
  std::vector<std::string> arguments = biased;
  arguments.emplace_back("32x32");
  const Outcome failed = run(arguments);
  EXPECT_EQ(failed.status, 1);
  EXPECT_NE(failed.err.find("check failed: 32x32 is not safe"), std::string::npos) << failed.err;
  EXPECT_NE(failed.out.find("VERDICT"), std::string::npos);
  arguments.back() = "smooth-k";
  const Outcome passed = run(arguments);
  EXPECT_EQ(passed.status, 0) << passed.err << passed.out;
  EXPECT_NE(passed.out.find("32x32+smooth-k"), std::string::npos) << "was not measured";
}

TEST_F(SqnrCommand, NanAndInfinityAreRefusedWithTheirPlace) {
  Dump dump = packed_dump(2);
  std::vector<float> k = io::to_f32(dump.k);
  k[(5 * 2 + 1) * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
  k[(9 * 2 + 0) * 32 + 3] = std::numeric_limits<float>::infinity();
  dump.k = io::from_f32(k, DType::kBF16, dump.k.shape);
  refused(dump, "k: expected finite values");
  refused(dump, "got 1 NaN and 1 infinite, the first at [row 5, head 1, channel 7]");
  // Rows behind the last sequence are slack and may hold anything.
  dump.more["cu_seqlens_k"] = offsets_tensor({0, 2, 5});
  EXPECT_EQ(measure(dump, {"--schemes", "32x32"}).size(), 2U);
}

TEST_F(SqnrCommand, WrongTensorsAreRefusedByName) {
  Dump dump = packed_dump(2);
  dump.k = io::from_f32(io::to_f32(dump.k), DType::kF16, dump.k.shape);
  refused(dump, "k: expected dtype bf16 as q, got f16");
  dump = packed_dump(2);
  dump.q = io::HostTensor::zeros(DType::kF64, dump.q.shape);
  refused(dump, "q: expected dtype f32, f16 or bf16, got f64");
  dump = packed_dump(2);
  dump.v.shape = {80, 1, 64};
  refused(dump, "v: expected the shape of k, bf16 [80, 2, 32], got bf16 [80, 1, 64]");
  dump = packed_dump(2);
  dump.dout.shape = {24, 8, 32};
  refused(dump, "dout: expected the shape of q");
  dump = packed_dump(2);
  dump.q.shape = {48 * 4, 32};
  refused(dump, "q: expected [batch, seqlen, num_heads, head_dim], or packed");
  dump = packed_dump(2);
  dump.k.shape = dump.v.shape = {160, 2, 16};
  refused(dump, "k: expected head_dim 32 as q, got bf16 [160, 2, 16]");
  dump = packed_dump(2);
  dump.q.shape = dump.dout.shape = {64, 3, 32};
  dump.more["cu_seqlens_q"] = offsets_tensor({0, 24, 48});
  refused(dump, "num_heads: expected a multiple of num_heads_kv = 2, got 3");
  for (io::HostTensor* tensor : {&dump.q, &dump.k, &dump.v, &dump.dout}) {
    *tensor = io::HostTensor::zeros(DType::kBF16, Shape{24, 1, 132});
  }
  dump.more["cu_seqlens_k"] = dump.more["cu_seqlens_q"] = offsets_tensor({0, 24});
  refused(dump, "head_dim: expected 64 or 128, or a multiple of 8 up to 128, got 132");
  dump = batched_dump(2);
  dump.k.shape = dump.v.shape = {1, 80, 2, 32};
  refused(dump, "k: expected a batch of 2 as q, got bf16 [1, 80, 2, 32]");
  dump = batched_dump(2);
  dump.more["cu_seqlens_q"] = offsets_tensor({0, 24, 48});
  refused(dump,
          "q: expected packed [total, num_heads, head_dim], because the file has cu_seqlens_q");
  refused(batched_dump(1), "no tensor 'grad'; the file has: ", {"--dout", "grad"});
}

TEST_F(SqnrCommand, WrongOffsetsAreRefusedByPosition) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::string>> cases = {
      {{0, 40, 81}, "cu_seqlens_k[2]: expected at most 80"},
      {{4, 40, 80}, "cu_seqlens_k[0]: expected 0, got 4"},
      {{0, 50, 40}, "cu_seqlens_k[2]: expected at least 50, got 40"},
      {{0, -1, 80}, "cu_seqlens_k[1]: expected at least 0, got -1"},
      {{0, 40}, "cu_seqlens_k: expected batch + 1 = 3 offsets, got 2"},
      {{}, "cu_seqlens"}};
  for (const auto& [offsets, want] : cases) {
    Dump dump = packed_dump(2);
    dump.more["cu_seqlens_k"] = offsets_tensor(offsets);
    refused(dump, want);
  }
  Dump dump = packed_dump(2);
  dump.more["cu_seqlens_k"] = offsets_tensor({0, 40, (std::int64_t{1} << 32) + 80}, DType::kI64);
  refused(dump, "cu_seqlens_k: expected values that fit 32 bits, got 4294967376 at index 2");
  dump.more.erase("cu_seqlens_k");
  refused(dump, "no tensor 'cu_seqlens_k'; the file has: ");
  dump.more["cu_seqlens_k"] = io::HostTensor::zeros(DType::kF32, Shape{3});
  refused(dump, "cu_seqlens_k: expected dtype i32 or i64, got f32");
}

TEST_F(SqnrCommand, SaysThatAZeroDoutMeasuresNoGradient) {
  Dump dump = packed_dump(1);
  const std::string note = "dout is zero: gradients were not measured";
  dump.save(path("dump"));
  const std::vector<std::string> arguments{"sqnr", "--input", path("dump"), "--schemes", "32x32"};
  EXPECT_EQ(run(arguments).out.find(note), std::string::npos);
  std::ranges::fill(dump.dout.bytes, std::byte{});
  dump.save(path("dump"));
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(note), std::string::npos) << outcome.out;
}

TEST_F(SqnrCommand, BadUsageIsRefused) {
  const Dump dump = packed_dump(1);
  refused(dump, "schemes: expected a base (32x32, 1x32", {"--schemes", "fastest"});
  refused(dump, "require: expected a base", {"--require", "fastest"});
  refused(dump, "--schemes: expected names separated by commas, got '32x32,,bf16'",
          {"--schemes", "32x32,,bf16"});
  refused(dump, "reference: expected f64 or kern, got 'f32'", {"--reference", "f32"});
  refused(dump, "causal-alignment: expected bottom-right or top-left",
          {"--causal-alignment", "left"});
  refused(dump, "window_left: expected at least -1, got -2", {"--window", "-2", "3"});
  refused(dump, "softmax_scale: expected a finite number above 0", {"--softmax-scale", "0"});
  refused(dump, "max-pairs: expected at least 1, got 0", {"--max-pairs", "0"});
  refused(dump, "input: expected either --input FILE or --synthetic NAME, got both",
          {"--synthetic", "normal"});
  refused(dump, "plot: expected another file than --json", {"--plot", path("j.svg")});
  refused(dump, "--seed", {"--seed", "-1"});
  refused(dump, "--max-pairs", {"--max-pairs", "99999999999999999999"});
  refused(dump, "--seqlen-q", {"--seqlen-q", "16"});
  expect_refused({"sqnr", "--synthetic", "normal", "--dout", "z"}, "--dout");
  expect_refused({"sqnr"}, "got neither");
  expect_refused({"sqnr", "--synthetic", "abnormal"}, "synthetic: expected one of");
  expect_refused({"sqnr", "--synthetic", "normal", "--seqlen-k", "9999999"},
                 "seqlen-k: expected 0 .. 1048576, got 9999999");
  expect_refused({"sqnr", "--synthetic", "normal", "--seqlen-q", "-1"},
                 "--seqlen-q: expected a whole");
  expect_refused({"sqnr", "--synthetic", "normal", "--seqlen-q", "x"}, "--seqlen-q");
  expect_refused({"sqnr", "--synthetic", "normal", "--plot", path("no/p.svg")},
                 "no/p.svg: cannot write");
}

}  // namespace
}  // namespace mxfa::cli
