#include <gtest/gtest.h>

#include <vector>

#include "reference/batch.h"
#include "support/cases.h"

namespace mxfa::reference {
namespace {

using testing::AttentionCase;
using testing::CaseEntry;
using testing::Precision;

constexpr Precision kDouble{.rounding = 1e-12, .quantized = false};

std::vector<CaseEntry> entries(bool large) {
  std::vector<CaseEntry> result;
  for (const CaseEntry& entry : testing::field_failure_cases()) {
    if (entry.large == large) result.push_back(entry);
  }
  return result;
}

PackedInputs packed(const AttentionCase& c) {
  return {.problem = c.problem(), .q = c.q, .k = c.k, .v = c.v, .dout = c.dout};
}

void expect_refusal(const AttentionCase& c) {
  try {
    batched_backward(packed(c));
    FAIL() << "not refused";
  } catch (const Error& error) {
    for (const std::string& part : c.refusal) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << error.what() << "\" does not say \"" << part << "\"";
    }
  }
}

void expect_answers(const AttentionCase& c) {
  const PackedOutputs out = batched_backward(packed(c));
  EXPECT_EQ(out.o.size(), c.q.size());
  EXPECT_EQ(out.lse.size(), std::size_t(c.total_q() * c.num_heads));
  EXPECT_EQ(out.dq.size(), c.q.size());
  EXPECT_EQ(out.dk.size(), c.k.size());
  EXPECT_EQ(out.dv.size(), c.v.size());
  EXPECT_TRUE(testing::matches(out.o, c.o, kDouble, "o"));
  EXPECT_TRUE(testing::matches(out.lse, c.lse, kDouble, "lse"));
  EXPECT_TRUE(testing::matches(out.dq, c.dq, kDouble, "dq"));
  EXPECT_TRUE(testing::matches(out.dk, c.dk, kDouble, "dk"));
  EXPECT_TRUE(testing::matches(out.dv, c.dv, kDouble, "dv"));
  const PackedOutputs forward = batched_forward(packed(c));
  EXPECT_TRUE(testing::bitwise_equal(forward.o, out.o, {.label = "o of the forward alone"}));
  EXPECT_TRUE(testing::bitwise_equal(forward.lse, out.lse, {.label = "lse of the forward alone"}));
}

class OracleFieldFailures : public ::testing::TestWithParam<CaseEntry> {};
class OracleFieldFailuresFull : public ::testing::TestWithParam<CaseEntry> {};

void run(const CaseEntry& entry) {
  const AttentionCase c = entry.make();
  if (c.refusal.empty()) {
    expect_answers(c);
  } else {
    expect_refusal(c);
  }
}

TEST_P(OracleFieldFailures, RightAnswer) { run(GetParam()); }
TEST_P(OracleFieldFailuresFull, RightAnswer) { run(GetParam()); }

/// The closed forms in cases.h against the decimals that the catalogue prints.
TEST(FieldFailureCases, AnswersAgreeWithTheCatalogue) {
  using namespace testing::cases;
  EXPECT_NEAR(fix().lse->values[0], 1.193147, 1e-6);
  EXPECT_NEAR(low_scores(0x1p-13, true).lse->values[0], -7.686738, 1e-6);
  EXPECT_NEAR(low_scores(0x1p-13, true).o->values[0], 1.268941, 1e-6);
  EXPECT_NEAR(very_negative_lse(97).lse->values[1], -123.425289, 1e-6);
  EXPECT_NEAR(very_negative_lse(128).lse->values[0], -123.147970, 1e-6);
  EXPECT_NEAR(very_negative_lse(160).lse->values[1], -122.924826, 1e-6);
  EXPECT_NEAR(growing_maximum(true).o->values[31], 0.924142, 1e-6);
  EXPECT_NEAR(uniform(repeated(33728, 0), 0, 1, 8).lse->values[0], 10.426084, 1e-6);
  EXPECT_NEAR(odd_head_dim().lse->values[0], 10.119329, 1e-6);
  EXPECT_NEAR(odd_head_dim().o->values[0], 0.99996, 5e-6);
  EXPECT_NEAR(large_and_small_values().o->values[0], 258.976563, 1e-6);
}

const auto name_of = [](const ::testing::TestParamInfo<CaseEntry>& info) {
  return info.param.name;
};
INSTANTIATE_TEST_SUITE_P(Cases, OracleFieldFailures, ::testing::ValuesIn(entries(false)), name_of);
INSTANTIATE_TEST_SUITE_P(Cases, OracleFieldFailuresFull, ::testing::ValuesIn(entries(true)),
                         name_of);

}  // namespace
}  // namespace mxfa::reference
