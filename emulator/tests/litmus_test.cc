#include "litmus.h"

#include <algorithm>
#include <numeric>

#include "model/tensor_map.h"
#include "support.h"

/// Every litmus program is classified rightly, whoever goes first.
namespace mxfa::emu::test {
namespace {

class Litmus : public testing::TestWithParam<LitmusVariant> {
 protected:
  struct Result {
    CheckReport report;
    std::string fault;
    std::vector<std::uint32_t> output;
  };

  static Result run(const LitmusVariant& litmus, Policy policy, std::uint64_t seed) {
    GlobalMemory memory;
    std::vector<std::uint32_t> values(1024);
    std::iota(values.begin(), values.end(), 0u);
    const Buffer<std::uint32_t> in(memory, values, "p");
    const Buffer<std::uint32_t> out(memory, std::vector<std::uint32_t>(1024, 0), "o");
    Result result;
    LaunchOptions options;
    options.policy = policy;
    options.seed = seed;
    options.converge = seed % 2 == 0;
    options.check = &result.report;
    options.spin_budget = 1 << 16;
    try {
      const Module module(litmus.ptx, litmus.program + ".ptx", memory);
      module.launch("k", {{litmus.grid, 1, 1}, {litmus.block, 1, 1}, {litmus.cluster, 1, 1}, 0},
                    Arguments().add(in.data()).add(out.data()).add(tensor_map(in.data())), options);
    } catch (const PtxError& error) {
      result.fault = error.what();
    }
    result.output.assign(out.data(), out.data() + out.size());
    return result;
  }

  static model::TensorMapRecord tensor_map(const std::uint32_t* data) {
    const std::uint64_t dims[] = {32, 32};
    const std::uint64_t strides[] = {128};
    const std::uint32_t box[] = {32, 8};
    const std::uint32_t steps[] = {1, 1};
    model::TiledArguments arguments;
    arguments.data_type = 2;  // u32
    arguments.rank = 2;
    arguments.global_address = reinterpret_cast<std::uint64_t>(data);
    arguments.global_dim = dims;
    arguments.global_strides = strides;
    arguments.box_dim = box;
    arguments.element_strides = steps;
    return model::encode_tiled(arguments);
  }

  static std::string describe(const Result& result) {
    std::string text = "fault: " + result.fault;
    for (const Hazard& hazard : result.report.hazards) text.append("\n").append(hazard.text());
    return text;
  }
};

bool contains_one_of(const std::string& text, std::string choices) {
  while (!choices.empty()) {
    const std::size_t bar = choices.find(" | ");
    if (text.find(choices.substr(0, bar)) != std::string::npos) return true;
    choices = bar == std::string::npos ? "" : choices.substr(bar + 3);
  }
  return false;
}

bool as_expected(const LitmusVariant& litmus, const CheckReport& report, const std::string& fault) {
  const auto has = [&](HazardLevel level) {
    return std::ranges::any_of(report.hazards, [&](const Hazard& hazard) {
      return hazard.level == level && contains_one_of(hazard.rule, litmus.text);
    });
  };
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
  for (const Policy policy : kPolicies) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const Result result = run(litmus, policy, seed);
      ASSERT_TRUE(as_expected(litmus, result.report, result.fault))
          << "policy " << static_cast<int>(policy) << " seed " << seed << "\n"
          << describe(result);
      if (litmus.verdict != Verdict::kRight) continue;
      if (first.empty()) first = result.output;
      ASSERT_EQ(result.output, first) << "the output depends on who goes first";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Litmus, testing::ValuesIn(load_litmus(MXEMU_LITMUS_DIR)),
                         [](const auto& one) { return one.param.program + "_" + one.param.name; });

}  // namespace
}  // namespace mxfa::emu::test
