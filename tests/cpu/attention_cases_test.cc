#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "cpu/attention_call.h"
#include "support/cases.h"

/// The faults that users of other libraries met, in every mode of the CPU.
namespace mxfa::testing {
namespace {

using Param = std::tuple<CaseEntry, Mode>;

std::vector<CaseEntry> entries(bool large) {
  std::vector<CaseEntry> result;
  for (const CaseEntry& entry : field_failure_cases()) {
    if (entry.large == large) result.push_back(entry);
  }
  return result;
}

void expect_refusal(AttentionCall call, const std::vector<std::string>& parts) {
  for (const bool forward : {true, false}) {
    call.poison_all();
    const std::vector<float> untouched = forward ? call.o : call.dk;
    try {
      if (forward) {
        attention::forward(call.forward_args(), call.options);
      } else {
        attention::backward(call.backward_args(), call.options);
      }
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "\"" << error.what() << "\" does not say \"" << part << "\"";
      }
    }
    EXPECT_TRUE(bitwise_equal(forward ? call.o : call.dk, untouched, {.label = "written to"}));
  }
}

void run(const CaseEntry& entry, const Mode& mode) {
  const AttentionCase c = entry.make();
  AttentionCall call = AttentionCall::of(c, mode.options);
  if (!c.refusal.empty()) return expect_refusal(call, c.refusal);
  call.run();
  // FP32 outputs; a BF16 operand rounds like an E4M3 one, but 2^-9 at most.
  const bool bf16 = mode.options.precision == attention::Precision::kBf16;
  const Precision precision{.rounding = bf16 ? 0x1p-7 : 1e-5, .quantized = true};
  EXPECT_TRUE(matches(call.o, c.o, precision, "o"));
  EXPECT_TRUE(matches(call.lse, c.lse, {.rounding = 1e-6, .quantized = true}, "lse"));
  EXPECT_TRUE(matches(call.dq, c.dq, precision, "dq"));
  EXPECT_TRUE(matches(call.dk, c.dk, precision, "dk"));
  EXPECT_TRUE(matches(call.dv, c.dv, precision, "dv"));
}

class CpuFieldFailures : public ::testing::TestWithParam<Param> {};
class CpuFieldFailuresFull : public ::testing::TestWithParam<Param> {};

TEST_P(CpuFieldFailures, RightAnswer) { run(std::get<0>(GetParam()), std::get<1>(GetParam())); }
TEST_P(CpuFieldFailuresFull, RightAnswer) { run(std::get<0>(GetParam()), std::get<1>(GetParam())); }

const auto name_of = [](const ::testing::TestParamInfo<Param>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
};
INSTANTIATE_TEST_SUITE_P(Cases, CpuFieldFailures,
                         ::testing::Combine(::testing::ValuesIn(entries(false)),
                                            ::testing::ValuesIn(all_modes())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cases, CpuFieldFailuresFull,
                         ::testing::Combine(::testing::ValuesIn(entries(true)),
                                            ::testing::ValuesIn(all_modes())),
                         name_of);

}  // namespace
}  // namespace mxfa::testing
