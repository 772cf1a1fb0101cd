#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "support/compare.h"
#include "support/program.h"
#include "train_synthetic/experiment.h"
#include "train_synthetic/report.h"

/// The training comparison: its task, its model, its verdict, and the program.
namespace mxfa::examples {
namespace {

TEST(ClickTask, LabelsFollowTheirProbabilities) {
  const ClickTask task({}, 7);
  reference::Stream stream(1, 1);
  const ClickBatch batch = task.draw(stream, 4000);
  ASSERT_EQ(batch.cu_seqlens.size(), 4001U);
  ASSERT_EQ(batch.cu_seqlens.back(), batch.events());
  double expected = 0, variance = 0, clicks = 0;
  for (std::size_t u = 0; u < batch.label.size(); ++u) {
    const double p = batch.probability[u];
    ASSERT_TRUE(p > 0 && p < 1);
    expected += p;
    variance += p * (1 - p);
    clicks += batch.label[u];
  }
  EXPECT_NEAR(clicks, expected, 5 * std::sqrt(variance));
  // Knowing the probabilities is worth much, and the history tells of them.
  EXPECT_LT(log_loss(batch.probability, batch.label), 0.85 * base_entropy(batch.label));
  const std::vector<float> half{0, 1};
  EXPECT_DOUBLE_EQ(base_entropy(half), std::log(2.0));
  EXPECT_DOUBLE_EQ(log_loss({0.25, 0.5}, half), -(std::log(0.75) + std::log(0.5)) / 2);
  reference::Stream again(1, 1);
  EXPECT_TRUE(testing::bitwise_equal(task.draw(again, 4000).item, batch.item));
}

/// Log losses of steps on one batch again and again.
std::vector<double> losses_on_one_batch(const ModelOptions& options) {
  const ClickTask task({}, 7);
  reference::Stream stream(2, 1);
  const ClickBatch batch = task.draw(stream, 48);
  ClickModel model(options, 3);
  std::vector<double> losses;
  for (int step = 0; step < 25; ++step) losses.push_back(model.train(batch, 1e-2));
  return losses;
}

TEST(ClickModel, LearnsOneBatchInEveryPrecisionAndABrokenScaleShows) {
  const std::vector<double> bf16 = losses_on_one_batch({});
  EXPECT_LT(bf16.back(), 0.5 * bf16.front());
  const auto distance = [&](const std::vector<double>& losses) {
    double sum = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) sum += std::abs(losses[i] - bf16[i]);
    return sum / double(losses.size());
  };
  for (const auto recipe : {attention::Recipe::kBlackwell, attention::Recipe::kHopper}) {
    ModelOptions options{.precision = attention::Precision::kMxfp8, .recipe = recipe};
    const std::vector<double> mxfp8 = losses_on_one_batch(options);
    EXPECT_LT(mxfp8.back(), 0.5 * mxfp8.front());
    EXPECT_NE(mxfp8, bf16);
    options.broken_scales = true;
    EXPECT_GT(distance(losses_on_one_batch(options)), 2 * distance(mxfp8));
  }
}

Outcome outcome_of(const std::vector<std::vector<double>>& finals) {
  Outcome outcome;
  for (const std::vector<double>& values : finals) {
    ArmResult& arm = outcome.arms.emplace_back();
    arm.arm.name = "arm " + std::to_string(outcome.arms.size());
    for (const double value : values) arm.runs.push_back({{1, 2}, {1.0, value}, value});
  }
  return outcome;
}

TEST(TrainReport, ComparesWithTheSpreadOfSeeds) {
  const Outcome outcome = outcome_of({{0.80, 0.84}, {0.81, 0.85}, {0.84, 0.86}});
  EXPECT_TRUE(outcome.within_spread(1));
  EXPECT_FALSE(outcome.within_spread(2));
  const Spread spread = spread_of(outcome.arms[0].finals());
  EXPECT_DOUBLE_EQ(spread.mean, 0.82);
  EXPECT_NEAR(spread.deviation, 0.04 / std::sqrt(2), 1e-15);
  EXPECT_NEAR(outcome.differences(2)[1], 0.02, 1e-15);
  const std::string text = report_text(outcome, {.seeds = 2});
  EXPECT_NE(text.find("arm 2: +0.010000 +- 0.000000"), std::string::npos) << text;
  EXPECT_NE(text.find("0.830000 lies within"), std::string::npos) << text;
  EXPECT_NE(text.find("0.850000 lies outside"), std::string::npos) << text;
}

using TrainProgram = cli::ProgramTest;

TEST_F(TrainProgram, TrainsAndWritesCurvesAndRecords) {
  const cli::Outcome outcome = run({"--steps", "2", "--seeds", "1", "--users", "16", "--json",
                                    path("train.json"), "--plot", path("train.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no verdict: a spread needs two seeds or more"), std::string::npos);
  EXPECT_EQ(outcome.out.find("std"), std::string::npos) << outcome.out;
  const auto records = nlohmann::json::parse(cli::file_text(path("train.json")));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0]["impl"], "mxfa BF16");
  EXPECT_EQ(records[1]["impl"], "mxfa MXFP8");
  for (const auto& record : records) {
    EXPECT_EQ(record["curve_steps"], nlohmann::json({1.0, 2.0}));
    ASSERT_EQ(record["curves"].size(), 1U);
    EXPECT_GT(record["final_entropy"][0], record["best_entropy"]);
  }
  const std::string svg = cli::file_text(path("train.svg"));
  EXPECT_NE(svg.find("Training in BF16"), std::string::npos);
  EXPECT_NE(svg.find("Training in MXFP8"), std::string::npos);
  EXPECT_NE(svg.find("16384 held-out users); curves: 2048 others"), std::string::npos);
}

TEST_F(TrainProgram, RefusesBadSettings) {
  expect_refused({"--steps", "0"}, "steps: expected 1 to 1000000000, got 0");
  expect_refused({"--steps", "99999999999999999999"},
                 "--steps: expected an integer of 64 bits, got '99999999999999999999'");
  expect_refused({"--users", "99999999999"}, "users: expected 1 to 65536, got 99999999999");
  expect_refused({"--learning-rate", "1e300", "--steps", "3", "--seeds", "1", "--users", "4"},
                 "learning-rate: 1e+300: the loss of ");
  expect_refused({"--seeds", "0"}, "seeds");
  expect_refused({"--users", "-1"}, "users");
  expect_refused({"--recipe", "cake"}, "recipe: expected hopper or blackwell, got 'cake'");
  expect_refused({"--learning-rate", "nan"}, "learning-rate");
  expect_refused({"--steps", "1", "--json", path("no/such/folder")}, "no/such/folder");
  expect_refused({"--json", path("x.svg"), "--plot", path("x.svg")},
                 "plot: expected another file than --json");
  expect_refused({"--plot", path("x.png")}, "plot: expected a name that ends in .svg");
}

TEST_F(TrainProgram, ErrorsKeepTheirStatusWhereNobodyCanReadThem) {
  expect_quiet_refusals({"--wings", "--steps 0"});
}

}  // namespace
}  // namespace mxfa::examples
