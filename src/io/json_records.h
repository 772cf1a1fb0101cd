#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// The records that every `--json FILE` and every benchmark writes: a JSON array of objects with
/// the same field names everywhere. Empty optionals, strings and lists are left out of the file.
namespace mxfa::io {

/// Keeps fields in the order in which they were set.
using Json = nlohmann::ordered_json;

/// What was run. For jagged K `seqlen_k` is the nominal maximum and `total_k` the sum drawn.
struct CaseRecord {
  std::optional<std::int64_t> batch, num_heads, num_heads_kv;
  std::optional<std::int64_t> seqlen_q, seqlen_k, total_q, total_k, head_dim;
  std::optional<bool> causal, jagged;
};

/// Which form of the computation it was.
struct VariantRecord {
  std::string dq_accum;     ///< "fp32", "fp16" or "bf16"
  std::string qk;           ///< "mxfp8", "fp8" or "bf16"
  std::string dp;           ///< likewise
  std::string scores;       ///< what they accumulate in: "fp32" or "fp16"
  std::string p_scale;      ///< "constant", "per_block", ...
  std::string block_shape;  ///< block_shape_name()
  std::optional<bool> deterministic;
};

struct TimingRecord {
  double ms_median = 0;
  double ms_min = 0;
  double ms_max = 0;
  std::int64_t runs = 0;
};

struct CeilingRecord {
  std::string name;  ///< "fp8_gemm_tflops"
  double value = 0;
};

struct SqnrRecord {
  std::string tensor;
  double db = 0;
  double threshold_db = 0;
  std::string verdict;  ///< "pass", "borderline" or "fail"
  /// A bar that does not follow the operands, and "pass", "fail" or "missed by the recipe too",
  /// which does not count in the verdict.
  std::optional<double> fixed_db = std::nullopt;
  std::string fixed_verdict = {};
};

struct Record {
  std::string routine;  ///< "attention_forward", ...
  CaseRecord shape;     ///< written as "case"
  std::string impl;     ///< "mxfa mxfp8", ...
  std::optional<TimingRecord> timing;
  std::optional<double> tflops, gbps;
  std::optional<CeilingRecord> ceiling;
  std::optional<double> fraction_of_ceiling;
  VariantRecord variant;
  std::vector<std::pair<std::string, double>> sqnr_db;  ///< lower-case tensor name, dB
  std::vector<SqnrRecord> sqnr;
  std::string device, driver, commit, date;
  Json extra;  ///< an object of further fields, appended; null for none
};

/// JSON has no infinity and no NaN: a dB that is infinite (nothing differs) becomes null.
Json number(double value);

Json to_json(const Record& record);

/// A JSON array, indented, with a final newline. Text that is not UTF-8 is replaced, not refused.
std::string records_text(std::span<const Record> records);

/// Writes records_text() at once or not at all. Throws Error(kIo).
void write_records(const std::string& path, std::span<const Record> records);

/// Today in UTC, "2026-01-31".
std::string utc_date();

/// The processor's name as the system states it, or "cpu".
std::string cpu_name();

}  // namespace mxfa::io
