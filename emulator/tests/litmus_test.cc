#include "litmus.h"

#include <algorithm>
#include <fstream>

#include "support.h"

/// Every litmus program is classified rightly, whoever goes first.
namespace mxfa::emu::test {
namespace {

class Litmus : public testing::TestWithParam<LitmusVariant> {
 protected:
  static std::string describe(const LitmusResult& result) {
    std::string text = "fault: " + result.fault;
    for (const Hazard& hazard : result.report.hazards) text.append("\n").append(hazard.text());
    return text;
  }
};

bool as_expected(const LitmusVariant& litmus, const CheckReport& report, const std::string& fault) {
  const auto has = [&](HazardLevel level) { return has_hazard(report, level, litmus.text); };
  switch (litmus.verdict) {
    case Verdict::kRight:
      return fault.empty() && report.hazards.empty();
    case Verdict::kWarning:
      return fault.empty() && report.clean() && has(HazardLevel::kWarning);
    case Verdict::kError:
      return has(HazardLevel::kError);
    case Verdict::kFault:
      return contains_one_of(fault, litmus.text);
    case Verdict::kWrong:
      return has(HazardLevel::kError) || contains_one_of(fault, litmus.text);
  }
  return false;
}

TEST_P(Litmus, IsClassifiedRightlyUnderEveryPolicy) {
  const LitmusVariant& litmus = GetParam();
  std::vector<std::uint32_t> first;
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const LitmusResult result = run_litmus(litmus, policy, seed);
      ASSERT_TRUE(as_expected(litmus, result.report, result.fault))
          << "policy " << static_cast<int>(policy) << " seed " << seed << "\n"
          << describe(result);
      if (litmus.verdict != Verdict::kRight) continue;
      if (first.empty()) first = result.output;
      ASSERT_EQ(result.output, first) << "the output depends on who goes first";
    }
  }
}

// The table of traps in litmus/README.md names programs that there are, each with its fault.
TEST(LitmusTable, NamesPrograms) {
  const std::vector<LitmusVariant> all = load_litmus(MXEMU_LITMUS_DIR);
  std::ifstream file(std::string(MXEMU_LITMUS_DIR) + "/README.md");
  int rows = 0;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    inside = inside || line == "| trap | programs |";
    if (!inside || !line.starts_with("| ") || line.find('`') == std::string::npos) continue;
    ++rows;
    for (std::size_t at = line.find('`'); at != std::string::npos; at = line.find('`', at)) {
      const std::size_t end = line.find('`', at + 1);
      const std::string name = line.substr(at + 1, end - at - 1);
      const auto found = std::ranges::find(
          all, name, [](const LitmusVariant& one) { return one.program + " " + one.name; });
      EXPECT_NE(found, all.end()) << name;
      at = end + 1;
    }
  }
  EXPECT_EQ(rows, 33);
}

INSTANTIATE_TEST_SUITE_P(Programs, Litmus, testing::ValuesIn(load_litmus(MXEMU_LITMUS_DIR)),
                         [](const auto& one) { return one.param.program + "_" + one.param.name; });

}  // namespace
}  // namespace mxfa::emu::test
