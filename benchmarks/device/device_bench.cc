#include <CLI/CLI.hpp>
#include <map>

#include "bench.h"

/// Speed of the memory-bound kernels, against the device-to-device copy of the same run.
namespace mxfa::bench {
namespace {

/// One file for each routine, DIR/<routine>.json.
void write_results(const std::string& directory, const std::vector<io::Record>& records) {
  std::map<std::string, std::vector<io::Record>> by_routine;
  for (const io::Record& record : records) by_routine[record.routine].push_back(record);
  for (const auto& [routine, own] : by_routine) {
    io::write_records(directory + "/" + routine + ".json", own);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Speed of the memory-bound kernels");
  std::string json, results, commit, driver_name;
  std::vector<std::string> parts;
  app.add_option("--json", json, "write all result records to this file");
  app.add_option("--results", results, "write a file for each routine into this folder");
  app.add_option("--commit", commit, "the commit that was built, for the records");
  app.add_option("--driver-name", driver_name, "the driver's own version, for the records");
  app.add_option("--parts", parts, "norms, quantize, operands, dq; default all")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  const auto driver = std::make_shared<const driver::Driver>(driver::DriverOptions{});
  Bench bench{driver::Device(driver, 0)};
  bench.copy_gbps = measure_copy_gbps(bench);
  fmt::print("{}: copy {:.0f} GB/s\n", bench.device.name(), bench.copy_gbps);
  std::vector<io::Record> records;
  const auto wanted = [&](const char* part) {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  if (wanted("norms")) bench_norms(bench, records);
  if (wanted("quantize")) bench_quantize(bench, records);
  if (wanted("operands")) bench_operands(bench, records);
  if (wanted("dq")) bench_dq(bench, records);
  stamp(records, bench.device, driver_name, commit);
  if (!json.empty()) io::write_records(json, records);
  if (!results.empty()) write_results(results, records);
  return 0;
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  return mxfa::bench::run_program("device_bench", mxfa::bench::run, argc, argv);
}
