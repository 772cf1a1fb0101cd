#include "io/json_records.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/progress.h"

namespace mxfa::io {
namespace {

Record full_record() {
  Record record;
  record.routine = "attention_forward";
  record.shape = {.batch = 2,
                  .num_heads = 4,
                  .num_heads_kv = 1,
                  .seqlen_q = 512,
                  .seqlen_k = 4096,
                  .total_q = {},
                  .total_k = 5000,
                  .head_dim = 128,
                  .causal = false,
                  .jagged = true};
  record.impl = "mxfa mxfp8";
  record.timing = TimingRecord{.ms_median = 1.5, .ms_min = 1.25, .ms_max = 2, .runs = 100};
  record.tflops = 900.5;
  record.ceiling = CeilingRecord{.name = "fp8_gemm_tflops", .value = 1500};
  record.fraction_of_ceiling = 0.6;
  record.variant = {.dq_accum = "fp32",
                    .qk = "mxfp8",
                    .dp = {},
                    .scores = "fp16",
                    .p_scale = "constant",
                    .block_shape = "32x32",
                    .deterministic = false};
  record.sqnr_db = {{"o", 25.5}, {"lse", std::numeric_limits<double>::infinity()}};
  record.sqnr = {{"O", 25.5, 18, "pass"}};
  record.device = "x";
  record.date = "2026-01-31";
  record.extra = {{"note", "bad \xff utf-8"}};
  return record;
}

TEST(JsonRecords, FieldsAreTheContractsAndRoundTrip) {
  const std::vector<Record> records = {full_record(), Record{}};
  const Json parsed = Json::parse(records_text(records));
  ASSERT_EQ(parsed.size(), 2U);
  std::vector<std::string> keys;
  for (const auto& [key, value] : parsed[0].items()) keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"routine", "case", "impl", "ms_median", "ms_min", "ms_max",
                                      "runs", "tflops", "ceiling", "fraction_of_ceiling", "variant",
                                      "sqnr_db", "sqnr", "note", "device", "date"}));
  EXPECT_EQ(parsed[0]["case"].dump(),
            R"({"batch":2,"num_heads":4,"num_heads_kv":1,"seqlen_q":512,"seqlen_k":4096,)"
            R"("total_k":5000,"head_dim":128,"causal":false,"jagged":true})");
  EXPECT_EQ(parsed[0]["variant"].dump(),
            R"({"dq_accum":"fp32","qk":"mxfp8","scores":"fp16","p_scale":"constant",)"
            R"("block_shape":"32x32","deterministic":false})");
  EXPECT_EQ(parsed[0]["ms_median"], 1.5);
  EXPECT_EQ(parsed[0]["sqnr_db"]["o"], 25.5);
  EXPECT_TRUE(parsed[0]["sqnr_db"]["lse"].is_null());
  EXPECT_EQ(parsed[0]["sqnr"][0].dump(),
            R"({"tensor":"O","db":25.5,"threshold_db":18.0,"verdict":"pass"})");
  EXPECT_TRUE(parsed[1].empty());
  EXPECT_EQ(Json::parse(records_text({})), Json::array());
}

TEST(JsonRecords, DateAndProcessorHaveTheirForm) {
  std::string form = utc_date();
  for (char& c : form) c = c >= '0' && c <= '9' ? 'd' : c;
  EXPECT_EQ(form, "dddd-dd-dd");
  EXPECT_FALSE(cpu_name().empty());
}

TEST(Progress, LineShowsShareAndTimeLeft) {
  EXPECT_EQ(Progress::line("sqnr", 3, 12, 2.0), "sqnr [######..................]  25%  6 s left");
  EXPECT_EQ(Progress::line("x", 0, 0, 0), "x [########################] 100%");
  EXPECT_EQ(Progress::line("x", 9, 8, 1), "x [########################] 100%");
}

TEST(Progress, NothingIsPrintedWithoutATerminal) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("quiet", 2);
    progress.advance(2);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace mxfa::io
