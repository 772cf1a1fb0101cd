#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "mxfa/error.h"
#include "reference/datasets.h"
#include "sqnr/diagnostics.h"
#include "sqnr/sample.h"
#include "sqnr/schemes.h"
#include "sqnr/verdict.h"

namespace mxfa::cli::sqnr {
namespace {

attention::AttentionProblem problem_of(const std::vector<std::int32_t>& cu_q,
                                       const std::vector<std::int32_t>& cu_k, std::int64_t heads) {
  return {.batch = static_cast<std::int64_t>(cu_q.size()) - 1,
          .num_heads = heads,
          .num_heads_kv = heads,
          .head_dim = 64,
          .total_q = cu_q.back(),
          .total_k = cu_k.back(),
          .cu_seqlens_q = cu_q,
          .cu_seqlens_k = cu_k};
}

TEST(SqnrSample, EverythingIsTakenWhereItFits) {
  const std::vector<std::int32_t> cu_q = {0, 10, 10, 30, 40};
  const std::vector<std::int32_t> cu_k = {0, 7, 9, 9, 29};
  const Sample sample = choose_units(problem_of(cu_q, cu_k, 3), 10 * 7 * 3 + 10 * 20 * 3);
  EXPECT_TRUE(sample.complete());
  EXPECT_EQ(sample.units_total, 6) << "sequences 1 and 2 have no pair";
  EXPECT_EQ(sample.units.size(), 6U);
  EXPECT_EQ(sample.cut_units, 0);
  EXPECT_EQ(sample.pairs, 810);
}

TEST(SqnrSample, LargeInputsAreSpreadAndBounded) {
  std::vector<std::int32_t> cu = {0};
  for (int s = 0; s < 100; ++s) cu.push_back(cu.back() + 20 + s);
  const std::int64_t max_pairs = 200000;
  const Sample sample = choose_units(problem_of(cu, cu, 8), max_pairs);
  EXPECT_FALSE(sample.complete());
  EXPECT_LE(sample.pairs, max_pairs);
  EXPECT_GT(sample.pairs, max_pairs / 2);
  std::set<std::int64_t> sequences;
  std::set<std::int64_t> heads;
  std::set<std::pair<std::int64_t, std::int64_t>> units;
  double mean_length = 0;
  for (const Unit& unit : sample.units) {
    sequences.insert(unit.index.sequence);
    heads.insert(unit.index.head);
    units.insert({unit.index.sequence, unit.index.head});
    mean_length += static_cast<double>(unit.seqlen_k) / static_cast<double>(sample.units.size());
  }
  EXPECT_EQ(units.size(), sample.units.size()) << "a unit was taken twice";
  EXPECT_EQ(heads.size(), 8U);
  EXPECT_GT(sequences.size(), sample.units.size() * 3 / 4);
  EXPECT_NEAR(mean_length, 69.5, 10) << "short or long sequences are preferred";
  const Sample again = choose_units(problem_of(cu, cu, 8), max_pairs);
  ASSERT_EQ(again.units.size(), sample.units.size());
  EXPECT_EQ(again.units.back().index.sequence, sample.units.back().index.sequence);
}

TEST(SqnrSample, LongHeadsKeepWholeBlocksOfRows) {
  const std::vector<std::int32_t> cu_q = {0, 1000};
  const std::vector<std::int32_t> cu_k = {0, 4000};
  attention::AttentionProblem problem = problem_of(cu_q, cu_k, 1);
  const Sample last = choose_units(problem, 4 * 100 * 4000);
  ASSERT_EQ(last.units.size(), 1U);
  EXPECT_EQ(last.units[0].rows, 96);
  EXPECT_EQ(last.units[0].first_row, 904);
  EXPECT_EQ(last.cut_units, 1);
  problem.mask.alignment = CausalAlignment::kTopLeft;
  EXPECT_EQ(choose_units(problem, 4 * 100 * 4000).units[0].first_row, 0);
  EXPECT_EQ(choose_units(problem, 1).units[0].rows, 32) << "at least one block";
  const std::vector<std::int32_t> none = {0, 0};
  EXPECT_THROW(choose_units(problem_of(cu_q, none, 1), 1000), Error);
  EXPECT_THROW(choose_units(problem, 0), Error);
}

TEST(SqnrSchemes, NamesAreBasesAndDials) {
  const Scheme plain = parse_scheme("32x32");
  EXPECT_TRUE(plain.is_mx);
  EXPECT_EQ(plain.num_dials, 0);
  EXPECT_EQ(plain.matmul_time, 1.0);
  const Scheme dialled = parse_scheme("32xD+smooth-k+qk-bf16");
  EXPECT_EQ(dialled.config.machine, reference::recipe::Machine::kHopper);
  EXPECT_TRUE(dialled.config.smooth_k);
  EXPECT_TRUE(dialled.config.qk_bf16);
  EXPECT_FALSE(dialled.config.smooth_v);
  EXPECT_EQ(dialled.num_dials, 2);
  EXPECT_NEAR(dialled.matmul_time, 9.0 / 7, 1e-12);
  EXPECT_EQ(parse_scheme("smooth-k").name, "32x32+smooth-k");
  EXPECT_FALSE(parse_scheme("bf16").is_mx);
  EXPECT_EQ(parse_scheme("bf16").matmul_time, 2.0);
  EXPECT_EQ(parse_scheme("floor").config.scale_rule, ScaleRule::kFloor);
}

TEST(SqnrSchemes, EveryListedSchemeParsesAndIsDistinct) {
  for (const bool causal : {false, true}) {
    for (const auto& names : {default_schemes(causal), all_schemes(causal)}) {
      std::set<std::string> seen;
      for (const std::string& name : names) {
        EXPECT_TRUE(seen.insert(parse_scheme(name).name).second) << name;
        EXPECT_NE(scheme_help().find(name), std::string::npos) << name;
      }
      EXPECT_EQ(seen.contains("32x32+leak-free"), causal);
    }
    EXPECT_LE(default_schemes(causal).size(), 9U);
  }
}

TEST(SqnrSchemes, DialsWithoutEffectAreRefused) {
  for (const char* name : {"qk-bf16+qk-bf16", "dq-fp16+dq-bf16", "p-per-block+p-unscaled",
                           "bf16+qk-bf16", "bf16+dkq-bf16", "fp8-per-tensor+floor"}) {
    EXPECT_THROW(parse_scheme(name), Error) << name;
  }
  EXPECT_DOUBLE_EQ(parse_scheme("bf16").matmul_time, 2);
  EXPECT_DOUBLE_EQ(parse_scheme("qk-bf16+dp-bf16+dkq-bf16").matmul_time, 1 + 5.0 / 7);
}

TEST(SqnrSchemes, UnknownNamesListTheKnown) {
  for (const char* name : {"", "64x64", "32x32+", "32x32+fast", "smooth-k+32x32"}) {
    try {
      parse_scheme(name);
      FAIL() << name;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("32x32, 1x32, 32xD, fp8-per-tensor, bf16"), std::string::npos) << text;
      EXPECT_NE(text.find("smooth-k, smooth-v"), std::string::npos) << text;
      EXPECT_NE(text.find(std::string("'") + name + "'"), std::string::npos) << text;
    }
  }
}

/// A scheme whose tensors all have `db` but for `limiting`.
SchemeResult result_of(const std::string& scheme, double db, StepTensor limiting,
                       double limiting_db) {
  SchemeResult result;
  result.scheme = parse_scheme(scheme);
  for (Energy& energy : result.f64.tensors) energy = {1, std::pow(10, -db / 10), 1};
  result.f64[limiting] = {1, std::pow(10, -limiting_db / 10), 1};
  return result;
}

TEST(SqnrVerdict, GradesFollowTheBars) {
  for (const Bar& bar : kBars) {
    EXPECT_EQ(grade_of(bar.safe_db, bar), Grade::kPass);
    EXPECT_EQ(grade_of(bar.safe_db - 0.01, bar), Grade::kBorderline);
    EXPECT_EQ(grade_of(bar.borderline_db, bar), Grade::kBorderline);
    EXPECT_EQ(grade_of(bar.borderline_db - 0.01, bar), Grade::kFail);
    EXPECT_EQ(grade_of(std::nan(""), bar), Grade::kFail);
    const SchemeGrade grade = grade_scheme(result_of("32x32", 25, bar.tensor, 12));
    EXPECT_EQ(grade.limiting, bar.tensor);
    EXPECT_EQ(grade.grade, Grade::kFail);
    EXPECT_NEAR(grade.db, 12, 1e-9);
  }
  // S, P, dP and dS explain, they do not decide.
  for (const StepTensor tensor :
       {StepTensor::kS, StepTensor::kP, StepTensor::kDp, StepTensor::kDs}) {
    EXPECT_EQ(grade_scheme(result_of("32x32", 25, tensor, 5)).grade, Grade::kPass);
  }
}

std::string text_of(const Verdict& verdict) {
  std::string text;
  for (const std::string& line : verdict.lines) text += line + "\n";
  return text;
}

TEST(SqnrVerdict, RecommendsTheCheapestSafeScheme) {
  Sample sample;
  sample.units.resize(1);
  Measurement measurement;
  measurement.schemes = {
      result_of("bf16", 50, StepTensor::kO, 50), result_of("32x32", 25, StepTensor::kDq, 9),
      result_of("qk-bf16", 25, StepTensor::kDq, 24), result_of("smooth-k", 25, StepTensor::kDq, 22),
      result_of("smooth-v", 25, StepTensor::kDq, 9.2)};
  measurement.diagnostics.k.mean_share = 0.9;
  const Verdict verdict = judge(measurement, sample);
  EXPECT_EQ(verdict.plain, 1);
  EXPECT_EQ(verdict.recommended, 3);
  const std::string text = text_of(verdict);
  EXPECT_NE(text.find("32x32 (MXFP8 32x32) is NOT safe: lowest is dQ at 9.0 dB"), std::string::npos)
      << text;
  EXPECT_NE(text.find("K: 90 % of its energy is one vector"), std::string::npos) << text;
  EXPECT_NE(text.find("32x32+qk-bf16 +15.0 dB (to 24.0), 32x32+smooth-k +13.0 dB (to 22.0)."),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Switch on: 32x32+smooth-k"), std::string::npos) << text;
}

TEST(SqnrVerdict, SaysWhereNothingHelpsOrNothingIsNeeded) {
  Sample sample;
  sample.units.resize(1);
  Measurement measurement;
  measurement.schemes = {result_of("32x32", 25, StepTensor::kDk, 23),
                         result_of("smooth-k", 25, StepTensor::kDk, 24)};
  EXPECT_NE(text_of(judge(measurement, sample)).find("Use: 32x32"), std::string::npos);
  measurement.schemes = {result_of("32x32", 25, StepTensor::kDk, 10),
                         result_of("smooth-k", 25, StepTensor::kDk, 16)};
  const Verdict none = judge(measurement, sample);
  EXPECT_EQ(none.recommended, -1);
  EXPECT_NE(text_of(none).find("closest is 32x32+smooth-k (borderline)"), std::string::npos)
      << text_of(none);
  measurement.schemes = {result_of("bf16", 50, StepTensor::kO, 50)};
  EXPECT_EQ(judge(measurement, sample).plain, -1);
}

TEST(SqnrVerdict, NamesNoReasonOfSizeZero) {
  Sample sample;
  sample.units.resize(1);
  Measurement measurement;
  measurement.schemes = {result_of("32x32", 25, StepTensor::kDk, 23)};
  EXPECT_NE(text_of(judge(measurement, sample)).find("logits are off by"), std::string::npos);
  measurement.schemes[0].f64[StepTensor::kS].noise = 0;
  const std::string text = text_of(judge(measurement, sample));
  EXPECT_EQ(text.find("logits are off by"), std::string::npos) << text;
  EXPECT_EQ(text.find("What limits it"), std::string::npos) << text;
}

TEST(SqnrVerdict, NamesAHeadThatHidesInTheSums) {
  Sample sample;
  sample.units.resize(3);
  sample.units[2].index = {.sequence = 7, .head = 5};
  Measurement measurement;
  measurement.schemes = {result_of("32x32", 25, StepTensor::kDv, 20)};
  measurement.schemes[0].worst[static_cast<std::size_t>(StepTensor::kDv)] = {11.5, 2};
  EXPECT_NE(
      text_of(judge(measurement, sample)).find("Worst head for dV: 11.5 dB, sequence 7, head 5."),
      std::string::npos);
}

Diagnostics diagnose(const char* dataset) {
  const reference::HeadInputs inputs = reference::make_dataset(
      dataset, {.seqlen_q = 64, .seqlen_k = 256, .head_dim = 64, .seed = 3});
  DiagnosticsBuilder builder;
  builder.add(inputs, reference::attention_forward(inputs));
  return builder.result();
}

TEST(SqnrDiagnostics, FindWhatTheDataSetsWereMadeWith) {
  const Diagnostics normal = diagnose("normal");
  EXPECT_NEAR(normal.logit_std, 1.0, 0.1);
  EXPECT_LT(normal.k.mean_share, 0.05);
  EXPECT_LT(normal.v.mean_share, 0.05);
  EXPECT_TRUE(normal.k.outliers.empty());
  EXPECT_LT(normal.k.exponent_spread, 4);
  EXPECT_GT(diagnose("peaky").logit_std, 4);
  const Diagnostics kbias = diagnose("kbias");
  EXPECT_GT(kbias.k.mean_share, 0.8);
  EXPECT_EQ(kbias.k.outliers.size(), 4U);
  EXPECT_LT(kbias.v.mean_share, 0.05);
  EXPECT_NEAR(diagnose("vbias").v.mean_share, 0.8, 0.1);
  const Diagnostics outchan = diagnose("outchan");
  EXPECT_EQ(outchan.q.outliers.size(), 3U);
  EXPECT_EQ(outchan.k.outliers.size(), 3U);
  EXPECT_NE(outchan.q.outliers[0].channel, outchan.k.outliers[0].channel);
  EXPECT_GT(diagnose("realign").v.exponent_spread, 8);
  EXPECT_GT(diagnose("dom0.9").one_key_row_share, 0.9);
}

TEST(SqnrDiagnostics, MergingEqualsAddingInTurn) {
  DiagnosticsBuilder turn;
  DiagnosticsBuilder merged;
  for (const char* name : {"normal", "outchan", "realign"}) {
    const reference::HeadInputs inputs =
        reference::make_dataset(name, {.seqlen_q = 33, .seqlen_k = 65, .head_dim = 64, .seed = 1});
    const reference::ForwardResult forward = reference::attention_forward(inputs);
    turn.add(inputs, forward);
    DiagnosticsBuilder part;
    part.add(inputs, forward);
    merged.merge(part);
  }
  EXPECT_DOUBLE_EQ(turn.result().logit_std, merged.result().logit_std);
  EXPECT_DOUBLE_EQ(turn.result().q.mean_share, merged.result().q.mean_share);
  EXPECT_EQ(turn.result().q.outliers.size(), merged.result().q.outliers.size());
  EXPECT_EQ(turn.result().v.exponent_spread, merged.result().v.exponent_spread);
}

}  // namespace
}  // namespace mxfa::cli::sqnr
