#include "io/json_records.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <fstream>

#include "io/atomic_file.h"

namespace mxfa::io {
namespace {

template <class T>
void set(Json& object, const char* name, const std::optional<T>& value) {
  if (value) object[name] = *value;
}

void set(Json& object, const char* name, const std::optional<double>& value) {
  if (value) object[name] = number(*value);
}

void set(Json& object, const char* name, const std::string& value) {
  if (!value.empty()) object[name] = value;
}

Json case_json(const CaseRecord& shape) {
  Json object = Json::object();
  set(object, "batch", shape.batch);
  set(object, "num_heads", shape.num_heads);
  set(object, "num_heads_kv", shape.num_heads_kv);
  set(object, "seqlen_q", shape.seqlen_q);
  set(object, "seqlen_k", shape.seqlen_k);
  set(object, "total_q", shape.total_q);
  set(object, "total_k", shape.total_k);
  set(object, "head_dim", shape.head_dim);
  set(object, "causal", shape.causal);
  set(object, "jagged", shape.jagged);
  return object;
}

Json variant_json(const VariantRecord& variant) {
  Json object = Json::object();
  set(object, "dq_accum", variant.dq_accum);
  set(object, "qk", variant.qk);
  set(object, "dp", variant.dp);
  set(object, "scores", variant.scores);
  set(object, "p_scale", variant.p_scale);
  set(object, "block_shape", variant.block_shape);
  set(object, "deterministic", variant.deterministic);
  return object;
}

Json sqnr_json(const std::vector<SqnrRecord>& rows) {
  Json list = Json::array();
  for (const SqnrRecord& row : rows) {
    list.push_back({{"tensor", row.tensor},
                    {"db", number(row.db)},
                    {"threshold_db", number(row.threshold_db)},
                    {"verdict", row.verdict}});
    if (!row.fixed_db) continue;
    list.back()["fixed_db"] = number(*row.fixed_db);
    list.back()["fixed_verdict"] = row.fixed_verdict;
  }
  return list;
}

}  // namespace

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const Record& record) {
  Json object = Json::object();
  set(object, "routine", record.routine);
  if (Json shape = case_json(record.shape); !shape.empty()) object["case"] = std::move(shape);
  set(object, "impl", record.impl);
  if (record.timing) {
    object["ms_median"] = number(record.timing->ms_median);
    object["ms_min"] = number(record.timing->ms_min);
    object["ms_max"] = number(record.timing->ms_max);
    object["runs"] = record.timing->runs;
  }
  set(object, "tflops", record.tflops);
  set(object, "gbps", record.gbps);
  if (record.ceiling) {
    object["ceiling"] = {{"name", record.ceiling->name}, {"value", number(record.ceiling->value)}};
  }
  set(object, "fraction_of_ceiling", record.fraction_of_ceiling);
  if (Json variant = variant_json(record.variant); !variant.empty()) {
    object["variant"] = std::move(variant);
  }
  if (!record.sqnr_db.empty()) {
    Json& db = object["sqnr_db"] = Json::object();
    for (const auto& [tensor, value] : record.sqnr_db) db[tensor] = number(value);
  }
  if (!record.sqnr.empty()) object["sqnr"] = sqnr_json(record.sqnr);
  if (record.extra.is_object()) {
    for (const auto& [name, value] : record.extra.items()) object[name] = value;
  }
  set(object, "device", record.device);
  set(object, "driver", record.driver);
  set(object, "commit", record.commit);
  set(object, "date", record.date);
  return object;
}

std::string records_text(std::span<const Record> records) {
  Json list = Json::array();
  for (const Record& record : records) list.push_back(to_json(record));
  return list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_records(const std::string& path, std::span<const Record> records) {
  write_text_file(path, records_text(records));
}

std::string utc_date() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t start = line.find_first_not_of(" \t:", std::string("model name").size());
    if (start != std::string::npos) return line.substr(start);
  }
  return "cpu";
}

}  // namespace mxfa::io
