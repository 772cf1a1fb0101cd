#include <nlohmann/json.hpp>

#include "support/program.h"

namespace mxfa::cli {
namespace {

using BenchCommand = ProgramTest;

TEST_F(BenchCommand, MeasuresAndWritesRecords) {
  const Outcome outcome = run({"bench", "cpu", "--routines", "gemm_quantize", "--runs", "1",
                               "--json", path("cpu.json"), "--plot", path("cpu.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = nlohmann::json::parse(file_text(path("cpu.json")));
  double fp32 = 0;
  int measured = 0;
  for (const auto& record : records) {
    EXPECT_FALSE(record["device"].empty());
    EXPECT_FALSE(record["date"].empty());
    if (record["routine"] == "ceiling" && record["impl"] == "fp32_fma") fp32 = record["tflops"];
    if (record["routine"] != "gemm_quantize") continue;
    ++measured;
    EXPECT_EQ(record["runs"], 1);
    EXPECT_GT(record["ms_median"], 0);
    const double flops = 2.0 * double(record["m"]) * double(record["n"]) * double(record["k"]);
    EXPECT_NEAR(double(record["tflops"]), flops / double(record["ms_median"]) * 1e-9, 1e-9);
  }
  EXPECT_EQ(measured, 2);
  EXPECT_GT(fp32, 0);
  EXPECT_NE(file_text(path("cpu.svg")).find("</svg>"), std::string::npos);
}

TEST_F(BenchCommand, ComparesRatesOfAFile) {
  const nlohmann::json shape{{"batch", 1}, {"num_heads", 2}, {"seqlen_q", 8}, {"seqlen_k", 8}};
  nlohmann::json records;
  for (const auto& [impl, rate] : std::vector<std::pair<std::string, double>>{
           {"mxfa mxfp8", 300.0}, {"slow bf16", 100.0}, {"fast bf16", 200.0}, {"a fp8", 400.0}}) {
    records.push_back(
        {{"routine", "attention_forward"}, {"case", shape}, {"impl", impl}, {"tflops", rate}});
    records.push_back({{"routine", "attention_backward"},
                       {"case", shape},
                       {"impl", impl},
                       {"tflops", rate / 1000}});
  }
  std::ofstream(path("records.json")) << records;
  const Outcome outcome =
      run({"bench", "compare", path("records.json"), "--plot", path("rates.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* line : {"attention_forward\n", "300         1.50        0.75",
                           "attention_backward\n", "0.3         1.50        0.75"}) {
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line << "\n" << outcome.out;
  }
  EXPECT_NE(file_text(path("rates.svg")).find("attention_backward 1x2x8"), std::string::npos);
  EXPECT_NE(file_text(path("rates.svg")).find("batch x heads x queries"), std::string::npos);
  EXPECT_EQ(file_text(path("rates.svg")).find("prepared"), std::string::npos);
  const Outcome one =
      run({"bench", "compare", path("records.json"), "--routine", "attention_backward"});
  EXPECT_EQ(one.out.find("attention_forward"), std::string::npos) << one.out;

  const nlohmann::json jagged{{"batch", 4},      {"num_heads", 2}, {"seqlen_q", 8},
                              {"seqlen_k", 100}, {"total_k", 120}, {"jagged", true}};
  std::ofstream(path("whole.json")) << nlohmann::json::array(
      {{{"routine", "r"}, {"case", jagged}, {"impl", "mxfa (whole call)"}, {"tflops", 1}}});
  EXPECT_EQ(run({"bench", "compare", path("whole.json"), "--plot", path("whole.svg")}).status, 0);
  const std::string whole = file_text(path("whole.svg"));
  EXPECT_NE(whole.find("4x2x8 keys to 100, mean 30"), std::string::npos) << whole;
  EXPECT_NE(whole.find("prepared MXFP8 operands, whole calls from BF16"), std::string::npos);

  std::ofstream(path("object.json")) << "{}";
  std::ofstream(path("empty.json")) << "[]";
  std::ofstream(path("emulated.json"))
      << R"([{"routine": "a", "case": {}, "device": "mxemu sm_90a"}])";
  expect_refused({"bench", "compare", path("emulated.json")},
                 "got none (emulated records hold no speed)");
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused{
      {{path("none.json")}, "none.json: cannot open"},
      {{path("")}, path("") + ": cannot read: a folder"},
      {{""}, "expected the name of a file"},
      {{path("object.json")}, "object.json: expected a JSON array of records"},
      {{path("empty.json")}, "empty.json: expected records with a case and tflops"},
      {{path("records.json"), "--routine", "delta"}, "attention_forward, attention_backward"}};
  for (const auto& [arguments, want] : refused) {
    std::vector<std::string> all{"bench", "compare"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    expect_refused(all, want);
  }
}

TEST_F(BenchCommand, LeavesNoFileWhereItsReportIsLost) {
  std::ofstream(path("records.json"))
      << R"([{"routine": "a", "case": {}, "impl": "b", "tflops": 1}])";
  const std::set<std::string> before = files();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"bench", "compare", path("records.json"), "--plot", path("a.svg")},
        {"--help"},
        {"info", "--json", path("a.json")}}) {
    const Outcome outcome = run(arguments, "/dev/full");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.err.find("standard output: cannot write"), std::string::npos) << outcome.err;
    EXPECT_EQ(files(), before);
  }
}

TEST_F(BenchCommand, RefusesThreadsThatOnlyWait) {
  expect_refused({"bench", "cpu", "--threads", "100000"},
                 "threads: expected 0 for all cores, or 1 to ");
  expect_refused({"bench", "cpu", "--threads", "-1"}, "threads: expected 0 for all cores");
}

#ifdef MXFA_HAS_DRIVER
TEST_F(BenchCommand, RunsTheForwardOnTheEmulator) {
  const Outcome outcome =
      run({"bench", "forward", "--driver", "emulator", "--preset", "tiny", "--variants", "f32",
           "--json", path("forward.json"), "--plot", path("forward.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = nlohmann::json::parse(file_text(path("forward.json")));
  EXPECT_EQ(records.size(), 3u);
  for (const auto& record : records) EXPECT_GT(double(record["sqnr_db"]["o"]), 24);
  EXPECT_EQ(files(), (std::set<std::string>{"forward.json", "forward.svg"}));
  // Nothing is timed here: SQNR is drawn, by tensor.
  const std::string picture = file_text(path("forward.svg"));
  EXPECT_NE(picture.find("b1h2n200, o<"), std::string::npos) << picture;
  EXPECT_NE(picture.find("SQNR (dB)"), std::string::npos);
}

TEST_F(BenchCommand, HoldsTheForwardToItsBars) {
  const Outcome outcome =
      run({"bench", "forward", "--driver", "emulator", "--preset", "sqnr-tiny", "--variants", "f32",
           "--json", path("sqnr.json"), "--plot", path("sqnr.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  const auto records = nlohmann::json::parse(file_text(path("sqnr.json")));
  // Each of five kinds of data dense and jagged.
  EXPECT_EQ(records.size(), 10u);
  int jagged = 0;
  for (const auto& record : records) {
    EXPECT_EQ(record["sqnr"][0]["verdict"], "pass");
    jagged += record["case"]["jagged"] ? 1 : 0;
  }
  EXPECT_EQ(jagged, 5);
}

TEST_F(BenchCommand, FailsWhereABarIsMissed) {
  // Bars 50 dB above what the recipe reaches.
  const Outcome outcome = run({"bench", "forward", "--driver", "emulator", "--preset", "sqnr-tiny",
                               "--variants", "f32", "--slack-db", "-50"});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.out.find("FAIL"), std::string::npos);
}

TEST_F(BenchCommand, RunsTheBackwardOnTheEmulator) {
  const Outcome outcome = run({"bench", "backward", "--driver", "emulator", "--preset", "tiny",
                               "--json", path("backward.json"), "--plot", path("backward.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = nlohmann::json::parse(file_text(path("backward.json")));
  EXPECT_EQ(records.size(), 15u);
  for (const auto& record : records) {
    EXPECT_EQ(record["routine"], "attention_backward");
    for (const char* const tensor : {"dq", "dk", "dv"}) {
      EXPECT_GT(double(record["sqnr_db"][tensor]), 18) << record.dump();
    }
  }
  EXPECT_EQ(records[1]["variant"]["dq_accum"], "fp16");
  EXPECT_EQ(records[2]["variant"]["deterministic"], true);
  EXPECT_NE(std::string(records[3]["impl"]).find("half scores"), std::string::npos);
  EXPECT_EQ(records[3]["variant"]["scores"], "fp16");
  EXPECT_EQ(records[4]["variant"]["scores"], "fp16");
  EXPECT_EQ(records[0]["variant"]["scores"], "fp32");
}

TEST_F(BenchCommand, NamesWhatADeviceLacks) {
  expect_refused({"bench", "forward", "--driver", "emulator", "--arch", "sm_80"}, "sm_100a");
  expect_refused({"bench", "forward", "--driver", "emulator", "--preset", "dense"},
                 "expected tiny, sqnr-tiny, got 'dense'");
  expect_refused({"bench", "backward", "--driver", "emulator", "--preset", "sqnr-tiny"},
                 "expected tiny, got 'sqnr-tiny'");
  expect_refused({"bench", "backward", "--preset", "sqnr"}, "expected peer, dense");
  expect_refused({"bench", "forward", "--variants", "f32,half,f32"},
                 "variants: expected each of them once, got 'f32' again");
  expect_refused({"bench", "forward", "--preset", "fast"}, "jagged");
  expect_refused({"bench", "forward", "--variants", "f32,fast"}, "leak-free");
  expect_refused({"bench", "backward", "--variants", "fast"}, "deterministic");
  expect_refused({"bench", "backward", "--arch", "sm_90a"}, "without --driver emulator");
  const std::vector<std::string> tiny{"bench",    "forward",  "--driver",
                                      "emulator", "--preset", "tiny"};
  const auto with = [&](const char* option, const char* value) {
    std::vector<std::string> arguments = tiny;
    arguments.insert(arguments.end(), {option, value});
    return arguments;
  };
  expect_refused(with("--device", "0"), "device: expected none on the emulator");
  expect_refused(with("--cublaslt", "libfast.so"), "cublaslt: expected none on the emulator");
  expect_refused(with("--slack-db", "nan"), "expected a finite number, got 'nan'");
  expect_refused(with("--slack-db", "-inf"), "expected a finite number, got '-inf'");
  expect_refused(with("--plot", "a.png"), "expected a name that ends in .svg");
  expect_refused({"budget", "forward", "--clock", "inf"}, "expected a finite number, got 'inf'");
  expect_refused(with("--slack-db", "2"), "slack-db: expected none without --preset sqnr, got 2");
}
#endif

TEST_F(BenchCommand, RefusesWhatItDoesNotKnow) {
  expect_refused({"bench"}, "A subcommand is required");
  expect_refused({"bench", "cpu", "--preset", "fast"}, "peer");
  expect_refused({"bench", "cpu", "--routines", "fly"}, "rmsnorm_quantize");
  expect_refused({"bench", "cpu", "--recipe", "cake"}, "blackwell");
  expect_refused({"bench", "cpu", "--runs", "0"}, "runs");
}

TEST_F(BenchCommand, HelpTeachesAndSucceeds) {
  const Outcome help = run({"bench", "cpu", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("Examples:"), std::string::npos);
}

}  // namespace
}  // namespace mxfa::cli
