#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/program.h"

/// The command ptxemu, as built: check, mutate, their arguments and their messages.
namespace mxfa::cli {
namespace {

using Json = nlohmann::json;

const std::string kGemm = std::string(MXEMU_COMMITTED_PTX_DIR) + "/tma_gemm_sm90.sm_90a.ptx";
const std::string kExample = std::string(MXEMU_EXAMPLES_DIR) + "/missing_wait.ptx";

class Ptxemu : public ProgramTest {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  /// The launch of the committed kernel of TMA loads, as a description file.
  std::string gemm_arguments(int steps) const {
    write("gemm.args",
          "# one block, a ring of two stages\n--block 160 --smem 81920\n"
          "--buffer a=e4m3:40960=random:1 --buffer 'b=e4m3:40960=random:2'\n"
          "--arg map=a,u8,640x64,128x64,swizzle=128 --arg map=b,u8,640x64,128x64,swizzle=128\n"
          "--arg f32:4096=out --arg s32=" +
              std::to_string(steps) + "\n");
    return file_words("gemm.args");
  }
  std::string buffer_file(const std::string& buffer, const std::string& file) const {
    return buffer + "=" + path(file);
  }
  std::string file_words(const std::string& name) const { return std::string("@") + path(name); }
  Json json(const std::string& name) const { return Json::parse(file_text(path(name))); }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Ptxemu, CheckOfARightKernel) {
  const Outcome outcome =
      run({"check", kGemm, gemm_arguments(5), "--seeds", "2", "--json", path("out.json")});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "") << "no progress bar where nobody looks";
  EXPECT_TRUE(contains(outcome.out, "clean: 0 errors, 0 warnings, 0 of 10 launches failed"))
      << outcome.out;
  // The first two waits for free stages can only find them free.
  EXPECT_TRUE(contains(outcome.out, "waits that never had to wait")) << outcome.out;
  const Json result = json("out.json");
  EXPECT_TRUE(result["clean"]);
  EXPECT_EQ(result["launches"], 10);
  EXPECT_EQ(result["hazards"].size(), 0u);
  const auto never = std::ranges::count_if(result["waits"], [](const Json& wait) {
    return wait["blocked"] == 0 && wait["passed"] == wait["initial"];
  });
  EXPECT_EQ(never, 2);
}

TEST_F(Ptxemu, CheckListsWaitsThatAShortLoopNeverUses) {
  // One step: the ring of two never wraps.
  const Outcome outcome = run({"check", kGemm, gemm_arguments(1), "--seeds", "1"});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "not run")) << outcome.out;
}

TEST_F(Ptxemu, CheckOfAWrongKernel) {
  const Outcome outcome = run({"check", kExample, "--block", "128", "--arg", "f32:512=out",
                               "--seeds", "1", "--json", path("out.json")});
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "error: race")) << outcome.out;
  const Json result = json("out.json");
  EXPECT_FALSE(result["clean"]);
  EXPECT_TRUE(std::ranges::any_of(result["hazards"], [](const Json& hazard) {
    return hazard["rule"] == "race" && hazard["first"]["ptx_line"] == 34 &&
           hazard["second"]["ptx_line"] == 42;
  }));
}

TEST_F(Ptxemu, ResultsAreComparedWithAFile) {
  const std::vector<std::string> command{"run", kGemm, gemm_arguments(5), "--out",
                                         buffer_file("2", "d.bin")};
  EXPECT_EQ(run(command).status, 0);
  const std::string expect = buffer_file("2", "d.bin");
  EXPECT_EQ(run({"check", kGemm, gemm_arguments(5), "--seeds", "1", "--expect", expect}).status, 0);
  std::string wrong = file_text(path("d.bin"));
  wrong[100] = static_cast<char>(wrong[100] ^ 1);
  write("d.bin", wrong);
  const Outcome outcome =
      run({"check", kGemm, gemm_arguments(5), "--seeds", "1", "--expect", expect});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.out, "5 of 5 launches failed")) << outcome.out;
}

TEST_F(Ptxemu, MutateTellsWhatEachWaitIsFor) {
  const Outcome outcome = run({"mutate", kGemm, gemm_arguments(5), "--seeds", "1", "--kind", "wait",
                               "--kind", "commit", "--json", path("out.json")});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json result = json("out.json");
  std::map<std::string, int> totals;
  for (const Json& mutant : result["mutants"]) {
    EXPECT_TRUE(mutant["kind"] == "wait" || mutant["kind"] == "commit");
    ++totals[mutant["verdict"]];
    const bool first_phase = mutant["detail"] == "waits for the first phase only";
    EXPECT_EQ(mutant["verdict"] == "not exercised", first_phase) << mutant;
  }
  EXPECT_EQ(totals["not exercised"], 4);
  EXPECT_EQ(totals["warned"], 3) << "of the bulk store at the end";
  EXPECT_EQ(totals["wrong output"], 0);
  EXPECT_EQ(totals["redundant"], 0);
  EXPECT_GE(totals["reported"], 15);
}

TEST_F(Ptxemu, MutateRefusesAWrongKernel) {
  const Outcome outcome = run({"mutate", kExample, "--block", "128", "--arg", "f32:512=out"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.err, "not clean as it stands")) << outcome.err;
}

// `out` receives the struct's float times its integer; the struct is {pointer; s32; f32}.
constexpr char kStructKernel[] = R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 8 .b8 p[16])
{
  .reg .b64 out;
  .reg .b32 n;
  .reg .f32 f, g;
  ld.param.u64 out, [p];
  ld.param.s32 n, [p+8];
  ld.param.f32 f, [p+12];
  cvt.rn.f32.s32 g, n;
  mul.f32 f, f, g;
  st.global.f32 [out], f;
  ret;
}
)";

TEST_F(Ptxemu, StructsHaveTheLayoutOfC) {
  write("k.ptx", kStructKernel);
  const Outcome outcome =
      run({"run", path("k.ptx"), "--block", "1", "--buffer", "o=f32:3=fill:9", "--arg",
           "struct={ptr=o+4; s32=-3; f32=0.5}", "--out", buffer_file("o", "o.bin")});
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const std::string bytes = file_text(path("o.bin"));
  ASSERT_EQ(bytes.size(), 12u);
  float values[3];
  std::copy_n(bytes.data(), 12, reinterpret_cast<char*>(values));
  EXPECT_EQ(values[0], 9.0f);
  EXPECT_EQ(values[1], -1.5f);
  EXPECT_EQ(values[2], 9.0f);
}

TEST_F(Ptxemu, BadInputIsRefusedByName) {
  write("k.ptx", kStructKernel);
  write("bad.ptx", ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k( {\n");
  write("open.args", "--arg 's32=1\n");
  write("empty.ptx", ".version 9.0\n.target sm_90a\n.address_size 64\n");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string k = path("k.ptx");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{k}, "k takes 1 arguments, got 0"},
      {{k, "--arg", "s32=1"}, "4 bytes, but the parameter p has 16"},
      {{k, "--arg", "s32=x"}, "expected a whole number of -2147483648 to 2147483647, got 'x'"},
      {{k, "--arg", "s32=4294967300"}, "--arg s32=4294967300: expected a whole number"},
      {{k, "--arg", "u16=-1"}, "expected a whole number of 0 to 65535, got '-1'"},
      {{k, "--arg", "u8:4=fill:300"}, "expected a whole number of 0 to 255, got '300'"},
      {{k, "--arg", "f32=1e99"}, "expected a number of -3.40282347e+38 to 3.40282347e+38"},
      {{k, "--arg", "e4m3=449"}, "expected a number of -448 to 448, got '449'"},
      {{k, "--arg", "e8m0=3"}, "expected a power of two"},
      {{k, "--arg", "u8:4=" + file_words("")}, "expected a file, got '"},
      {{k, "--arg", "f64:4294967296=zeros", "--arg", "f64:4294967296=out"}, "on this machine"},
      {{k, "--arg", "s33=1"}, "unknown type 's33'"},
      {{k, "--arg", "f32:0=out"}, "expected a whole number of 1 to 4294967296, got '0'"},
      {{k, "--arg", "f32:4=sorted"}, "unknown pattern 'sorted'"},
      {{k, "--arg", "ptr=a", "--buffer", "b=u8:4=out"}, "no buffer 'a'; there are: b"},
      {{k, "--arg", "ptr=b+4", "--buffer", "b=u8:4=out"}, "'b' has 4 bytes"},
      {{k, "--arg", "struct={f32:4=out}"}, "a struct points to buffers by ptr=NAME"},
      {{k, "--arg", "struct={map=b,u8,64x64,64x8; s32=1}", "--buffer", "b=u8:4096=out"},
       "256 bytes, but the parameter p has 16"},
      {{k, "--arg", "map=b,u8,64x64"}, "expected map=BUFFER,TYPE,DIMS,BOX"},
      {{k, "--arg", "map=b,u8,64x64,8", "--buffer", "b=u8:4096=out"}, "expected 2 sizes, got 1"},
      {{k, "--arg", "map=b,u8,64x64,8x8", "--buffer", "b=u8:4096=out"}, "boxDim"},
      {{k, "--arg", "map=b,u8,64x64,16x8,swizzle=7", "--buffer", "b=u8:4096=out"},
       "expected 0, 32, 64 or 128, got '7'"},
      {{k, "--buffer", "u8:4=out"}, "expected NAME=TYPE:COUNT=PATTERN"},
      {{k, "--arg", "struct={s32=1;s32=2;u64=3}", "--entry", "other"}, "expected one of k"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--block", "2048"},
       "block: expected (1,1,1) to (1024,1024,64), got (2048,1,1)"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--grid", "3,x"},
       "--grid 3,x: expected a whole number"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--grid", "1,2,3,4"}, "--grid: expected X[,Y[,Z]]"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--grid", "1,65536"}, "got (1,65536,1)"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--block", "1,1,65"}, "got (1,1,65)"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--cluster", "0"}, "--cluster 0: expected a whole"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--seed", "-1"}, "--seed: expected a whole number"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--seeds", "1000001"}, "to 1000000, got '1000001'"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--smem", "4294967296"}, "--smem: expected a whole"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--policy", "timed"}, "--policy: expected random"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--out", "7=x"}, "no buffer '7'"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--json", "/no/such/folder/x"}, "/no/such/folder"},
      {{k, "--arg", "struct={u64=1;u64=2}", "--seeds", "0"}, "--seeds"},
      {{k, "--nonsense"}, "--nonsense"},
      {{path("bad.ptx")}, "bad.ptx:4"},
      {{path("none.ptx")}, "cannot read"},
      {{k, file_words("open.args")}, "a quotation is not closed"},
      {{k, file_words("no.args")}, "cannot read"},
      {{k, file_words("")}, "@" + path("") + ": expected a file, got '" + path("")},
      {{path("")}, "file: expected a file, got '" + path("") + "', a folder"},
      {{"/dev/zero"}, "expected a regular file, got '/dev/zero', a pipe or a device"},
      {{path("pipe")}, "expected a regular file, got '" + path("pipe") + "', a pipe or a device"},
      {{k, "--arg", "u8:4=@" + path("pipe")},
       "--arg u8:4=@" + path("pipe") + ": expected a regular"},
      {{k, "--arg", "u8:4=@" + k}, "expected a file of 4 bytes at most, got '" + k + "' of "},
      {{""}, "file: expected the name of a file, got ''"},
      {{k, "--arg", ""}, "--arg : expected TYPE=VALUE"},
      {{k, "--grid", ""}, "--grid : expected a whole number"},
      {{k, "--strict=maybe"}, "--strict: expected no value, or true or false, got 'maybe'"},
      {{path("empty.ptx")}, "empty.ptx: expected a kernel (.entry), got a text without any"},
  };
  for (const auto& [arguments, want] : cases) {
    for (const char* command : {"check", "mutate"}) {
      std::vector<std::string> all{command};
      all.insert(all.end(), arguments.begin(), arguments.end());
      expect_refused(all, want);
    }
  }
}

TEST_F(Ptxemu, OutputsAreCheckedBeforeTheWork) {
  write("k.ptx", kStructKernel);
  const std::vector<std::string> launch{path("k.ptx"),
                                        "--block",
                                        "1",
                                        "--buffer",
                                        "o=f32:1=out",
                                        "--arg",
                                        "struct={ptr=o; s32=1; f32=1}"};
  const std::string json = path("t.json");
  write("o.bin", "1234");
  write("more.args", "# nothing");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"check", "--json", path("k.ptx")}, "which is also for the PTX"},
      {{"mutate", "--json", path("k.ptx")}, "which is also for the PTX"},
      {{"check", "--json", path("o.bin"), "--expect", buffer_file("o", "o.bin")}, "for --expect"},
      {{"check", "--json", json, "--out", buffer_file("o", "t.json")}, "for --out"},
      {{"run", "--buffer", "b=f32:1=@" + path("o.bin"), "--out", buffer_file("o", "o.bin")},
       "which is also for a buffer"},
      {{"trace", "@" + path("more.args"), "--json", path("more.args")}, "also for words"},
      {{"trace"}, "expected --json FILE, --svg FILE or both, got neither"},
      {{"trace", "--json", "/no/such/folder/x"}, "--json: /no/such/folder/x: "},
      {{"trace", "--svg", path("")}, "--svg: "},
      {{"trace", "--json", json, "--svg", json}, "--svg: expected a file of its own"},
      {{"trace", "--json", json, "--show-block", "1"}, "expected a block of the grid, 0 to 0"},
      {{"trace", "--json", json, "--role", "x=3-1"}, "--role x=3-1: expected a whole number of 3"},
      {{"trace", "--json", json, "--role", "x=0-1"}, "--role x: expected warps of a block, 0 to 0"},
      {{"run", "--out", buffer_file("o", "no/such/folder")}, "--out o="},
      {{"run", "--out", buffer_file("o", "k.ptx")}, "which is also for the PTX"},
      {{"run", "--out", buffer_file("o", "t"), "--out", buffer_file("o", "./t")}, "also for --out"},
      {{"run", "--threads", "1025"}, "--threads: expected a whole number of 1 to 1024"},
      {{"run", "--seed", "18446744073709551615", "--seeds", "2"}, "--seeds: "},
  };
  for (const auto& [arguments, want] : cases) {
    std::vector<std::string> all{arguments};
    all.insert(all.begin() + 1, launch.begin(), launch.end());
    expect_refused(all, want);
  }
}

TEST_F(Ptxemu, LintTellsFindingsFromBadInput) {
  write("k.ptx", kStructKernel);
  write("odd.ptx",
        std::string(kStructKernel).replace(std::string(kStructKernel).find("mul"), 3, "mull"));
  write("not.ptx", "kernel");
  EXPECT_EQ(run({"lint", path("k.ptx")}).status, 0);
  EXPECT_EQ(run({"lint", path("odd.ptx")}).status, 1);
  for (const char* name : {"not.ptx", "none.ptx", ""}) expect_refused({"lint", path(name)}, name);
  expect_refused({"lint", "/dev/zero"}, "lint: expected a regular file, got '/dev/zero'");
}

TEST_F(Ptxemu, ATraceOfSeveralSeedsSaysWhich) {
  write("k.ptx", kStructKernel);
  const Outcome outcome = run({"trace", path("k.ptx"), "--block", "1", "--buffer", "o=f32:1=out",
                               "--arg", "struct={ptr=o; s32=1; f32=1}", "--json", path("t.json"),
                               "--seed", "4", "--seeds", "3"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "the trace is of seed 6\n")) << outcome.out;
}

TEST_F(Ptxemu, LostOutputIsAnError) {
  write("k.ptx", kStructKernel);
  for (const std::string& words :
       {std::string("--help"), std::string("run --help"), "lint " + path("k.ptx") + " --help"}) {
    const std::string command =
        std::string(MXFA_PROGRAM) + " " + words + " > /dev/full 2> '" + path("err") + "'";
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << words;
    EXPECT_EQ(file_text(path("err")), "ptxemu: standard output: cannot write\n") << words;
  }
}

TEST_F(Ptxemu, ErrorsKeepTheirStatusWhereNobodyCanReadThem) {
  expect_quiet_refusals({"foo", "run nosuch.ptx"});
}

TEST_F(Ptxemu, NamesAWrongCommand) {
  expect_refused({"foo"}, "ptxemu: command: expected run, trace, check, mutate, lint, got 'foo'");
}

TEST_F(Ptxemu, HelpTeaches) {
  for (const char* command : {"check", "mutate", "run"}) {
    const Outcome outcome = run({command, "--help"});
    EXPECT_EQ(outcome.status, 0);
    for (const char* word : {"map=BUFFER,TYPE,DIMS,BOX", "struct={A; B; ..}", "Example", "@FILE"}) {
      EXPECT_TRUE(contains(outcome.out, word)) << command << ": " << word;
    }
  }
}

/// Commands "$ ..." of a section of the README, each with the lines of output that it quotes.
std::vector<std::pair<std::string, std::vector<std::string>>> readme_commands(
    const std::string& heading) {
  std::ifstream file(MXEMU_README);
  std::vector<std::pair<std::string, std::vector<std::string>>> commands;
  bool inside = false;
  bool code = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == heading;
    if (!inside) continue;
    if (line.starts_with("```")) {
      code = !code;
    } else if (code && line.starts_with("$ ")) {
      commands.push_back({line.substr(2), {}});
    } else if (code && !line.empty() && line != "..." && !commands.empty()) {
      commands.back().second.push_back(line);
    }
  }
  return commands;
}

TEST_F(Ptxemu, TheReadmesExampleIsTrue) {
  const auto commands = readme_commands("## A missing wait, found");
  ASSERT_EQ(commands.size(), 4u);
  std::filesystem::copy(kExample, path("missing_wait.ptx"));
  const std::string program(MXFA_PROGRAM);
  const std::string prefix =
      "cd '" + path("") + "' && PATH='" + program.substr(0, program.rfind('/')) + "':\"$PATH\" && ";
  for (const auto& [command, lines] : commands) {
    const int status =
        std::system(("{ " + prefix + command + "; } > '" + path("log") + "'").c_str());
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_LE(WEXITSTATUS(status), 1) << command;
    const std::string log = file_text(path("log"));
    for (const std::string& line : lines) EXPECT_TRUE(contains(log, line)) << line << "\n" << log;
  }
}

}  // namespace
}  // namespace mxfa::cli
