#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "support/program.h"

namespace mxfa::cli {
namespace {

using InfoCommand = ProgramTest;

TEST_F(InfoCommand, HelpTeachesAndSucceeds) {
  const Outcome root = run({"--help"});
  EXPECT_EQ(root.status, 0);
  EXPECT_NE(root.out.find("Exit status"), std::string::npos);
  for (const char* command :
       {"info", "quantize", "dequantize", "sqnr", "module", "tmem", "budget"}) {
    const Outcome help = run({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_EQ(help.err, "") << command;
    const std::size_t examples = help.out.find("Examples:");
    ASSERT_NE(examples, std::string::npos) << command;
    const std::string line = std::string("  mxfa ") + command;
    const std::size_t first = help.out.find(line, examples);
    ASSERT_NE(first, std::string::npos) << command;
    EXPECT_NE(help.out.find(line, first + 1), std::string::npos) << command << ": one example";
    EXPECT_NE(help.out.find("--json FILE"), std::string::npos) << command;
  }
  EXPECT_EQ(run({"--version"}).out.rfind("mxfa 0.", 0), 0U);
}

TEST_F(InfoCommand, UsageErrorsAreStatus2) {
  expect_refused({}, "A subcommand is required");
  expect_refused({"fly"}, "mxfa: error: unknown command 'fly' (commands: info, ");
  expect_refused({"bench", "gpu"}, "mxfa bench: error: unknown command 'gpu' (commands: cpu, ");
  expect_refused({"bench", "cpu", "--wings"}, "See: mxfa bench cpu --help");
  expect_refused({"bench", "cpu", "--routines", "a,,b"},
                 "--routines: expected names separated by commas, got 'a,,b'");
  expect_refused({"info", "--wings"}, "--wings");
  expect_refused({"quantize"}, "--input is required");
}

TEST_F(InfoCommand, ErrorsKeepTheirStatusWhereNobodyCanReadThem) {
  expect_quiet_refusals({"foo", "info --wings", "sqnr --input nosuch"});
}

TEST_F(InfoCommand, ReportsTheBuildAndTheMachine) {
  const Outcome outcome = run({"info", "--json", path("info.json")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(file_text(path("info.json")));
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["routine"], "info");
  EXPECT_NE(outcome.out.find(json[0]["version"].get<std::string>()), std::string::npos);
  EXPECT_NE(outcome.out.find(json[0]["compiler"].get<std::string>()), std::string::npos);
  EXPECT_NE(outcome.out.find(json[0]["device"].get<std::string>()), std::string::npos);
  EXPECT_NE(outcome.out.find(json[0]["commit"].get<std::string>()), std::string::npos);
  EXPECT_EQ(json[0]["machines"].size(), 3U);
  for (const auto& machine : json[0]["machines"]) {
    EXPECT_NE(outcome.out.find(machine["ready"].get<std::string>()), std::string::npos);
  }
}

TEST_F(InfoCommand, ListsTheTensorsOfAFile) {
  io::HostTensor tensor = io::HostTensor::zeros(DType::kBF16, std::vector<std::int64_t>{2, 3});
  io::write_safetensors(path("a"), std::vector<io::NamedTensor>{{"weights", tensor.view()}},
                        {{"kind", "test"}});
  const Outcome outcome = run({"info", path("a"), "--json", path("info.json")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("weights"), std::string::npos);
  EXPECT_NE(outcome.out.find("[2, 3]"), std::string::npos);
  EXPECT_NE(outcome.out.find("metadata kind = test"), std::string::npos);
  const auto json = nlohmann::json::parse(file_text(path("info.json")));
  EXPECT_EQ(json[0]["tensors"],
            nlohmann::json::parse(
                R"([{"name": "weights", "dtype": "BF16", "shape": [2, 3], "bytes": 12}])"));
}

TEST_F(InfoCommand, BadFilesAreRefusedAndNothingIsWritten) {
  expect_refused({"info", path("none"), "--json", path("out.json")}, "none: cannot read");
  std::ofstream(path("short")) << "abc";
  expect_refused({"info", path("short"), "--json", path("out.json")},
                 "short: not a safetensors file");
  expect_refused({"info", "--json", path("no/folder.json")}, "no/folder.json: cannot write");
}

}  // namespace
}  // namespace mxfa::cli
