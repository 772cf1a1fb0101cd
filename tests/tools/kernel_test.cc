#include <map>
#include <nlohmann/json.hpp>

#include "support/program.h"

namespace mxfa::cli {
namespace {

using KernelCommands = ProgramTest;
using KernelCommandsFull = ProgramTest;

#ifdef MXFA_HAS_DRIVER
TEST_F(KernelCommands, TensorMemoryAsItRan) {
  const Outcome outcome = run({"tmem", "forward", "--head-dim", "64", "--svg", path("tmem.svg"),
                               "--json", path("tmem.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const auto lives = nlohmann::json::parse(file_text(path("tmem.json")))[0]["lives"];
  // Two work tiles of three steps and two streams: S, P and four atoms of scales each; O a tile.
  std::map<std::string, int> count;
  std::set<std::string> guards;
  for (const auto& life : lives) {
    ++count[life["what"]];
    EXPECT_LE(life["begin"], life["end"]);
    for (const auto& guard : life["guards"]) {
      // Scales of S(i) take columns that the softmax has read, O(i) those that the correction has.
      guards.insert(std::string(life["what"]) + " " + std::string(guard["before"]) + " " +
                    std::string(guard["by"]));
    }
  }
  const std::map<std::string, int> wanted{{"S(0)", 6},  {"S(1)", 6}, {"P(0)", 6},  {"P(1)", 6},
                                          {"O(0)", 2},  {"O(1)", 2}, {"SF Q", 12}, {"SF K", 12},
                                          {"SF P", 12}, {"SF V", 12}};
  EXPECT_EQ(count, wanted);
  for (const char* guard : {"SF Q S(0) s_read[0]", "SF Q S(1) s_read[1]", "O(0) O(0) pv_ready[0]",
                            "P(1) S(1) tcgen05.wait::ld"}) {
    EXPECT_TRUE(guards.contains(guard)) << guard << "\n" << outcome.out;
  }
  EXPECT_NE(file_text(path("tmem.svg")).find("</svg>"), std::string::npos);
  EXPECT_EQ(files(), (std::set<std::string>{"tmem.json", "tmem.svg"}));
}

// What the kernel's arithmetic is, whatever its instructions are.
TEST_F(KernelCommands, BudgetCountsAStep) {
  const Outcome outcome =
      run({"budget", "forward", "--arch", "sm_103a", "--json", path("budget.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const auto record = nlohmann::json::parse(file_text(path("budget.json")))[0];
  std::map<std::string, double> amount, clocks;
  for (const auto& demand : record["demands"]) {
    amount[demand["resource"]] = demand["amount"];
    clocks[demand["resource"]] = demand["clocks"];
  }
  EXPECT_EQ(amount["MMA"], 4.0 * 2 * 128 * 128 * 128);
  EXPECT_EQ(clocks["MMA"], 1024);
  // All of P, and a factor a row where the maximum moves.
  EXPECT_GE(amount["exp2, special function unit"], 2 * 128 * 128);
  EXPECT_LE(amount["exp2, special function unit"], 2 * 128 * 129);
  EXPECT_GE(record["fraction_of_mxfp8"], 0.57);
  EXPECT_LE(record["fraction_of_mxfp8"], 1.0);
}

// Machine instructions are counted by hand. They are of this kernel as long as its PTX is what it
// was then, to the few instructions by which releases of a compiler differ.
TEST_F(KernelCommandsFull, BudgetsMachineInstructionsAreOfThisKernel) {
  for (const char* arch : {"sm_100a", "sm_103a"}) {
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
             {}, {"--p-scale", "amax"}, {"--p-scale", "row_max"}, {"--leak-free"}}) {
      std::vector<std::string> arguments{"budget", "forward", "--arch",
                                         arch,     "--json",  path("budget.json")};
      arguments.insert(arguments.end(), options.begin(), options.end());
      const Outcome outcome = run(arguments);
      ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
      const auto record = nlohmann::json::parse(file_text(path("budget.json")))[0];
      const double then = record["ptx_of_sass"], now = record["ptx_softmax"];
      EXPECT_NEAR(now, then, 0.02 * then) << outcome.out;
    }
  }
}
#endif

TEST_F(KernelCommands, RefuseWhatTheyDoNotKnow) {
  expect_refused({"tmem"}, "kernel");
  expect_refused({"tmem", "backward"}, "forward");
  expect_refused({"tmem", "forward", "--head-dim", "96"}, "64");
#ifdef MXFA_HAS_DRIVER
  expect_refused({"tmem", "forward", "--arch", "sm_90a"}, "sm_100a");
  expect_refused({"budget", "forward", "--p-scale", "none"}, "row_max");
  expect_refused({"budget", "forward", "--p-scale", "amax", "--leak-free"}, "constant");
  expect_refused({"budget", "forward", "--clock", "0"}, "clock");
#endif
}

}  // namespace
}  // namespace mxfa::cli
