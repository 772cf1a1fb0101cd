#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <optional>

#include "build_info.h"
#include "command.h"
#include "core/parallel.h"
#include "cpu/kernels.h"
#include "io/safetensors.h"
#include "mxfa/error.h"
#include "mxfa/version.h"
#ifdef MXFA_HAS_DRIVER
#include "driver/device.h"
#include "driver/driver.h"
#endif

namespace mxfa::cli {
namespace {

struct InfoOptions {
  std::string file;
  std::string json;
};

/// What each machine can do in this version. Kept honest here and nowhere else.
struct MachineRow {
  const char* name;
  const char* arch;
  const char* ready;
  const char* missing;
};

constexpr MachineRow kMachines[] = {
    {"cpu", "any", "sqnr, quantize, attention, GEMM+quantize, RMSNorm+quantize, the module",
     "Python package"},
    {"hopper", "sm_90a", "attention forward and backward; kernels of quantize and RMSNorm+quantize",
     "public quantize and RMSNorm+quantize, GEMM+quantize, the module"},
    {"blackwell", "sm_100a, sm_103a",
     "attention forward; kernels of quantize and RMSNorm+quantize (in the emulator, never run on "
     "such a GPU)",
     "attention backward, public quantize and RMSNorm+quantize, GEMM+quantize, the module"},
};

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown compiler";
#endif
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  const auto add = [&](bool present, const char* name) {
    if (present) features.emplace_back(name);
  };
  __builtin_cpu_init();
  add(__builtin_cpu_supports("sse4.2") != 0, "sse4.2");
  add(__builtin_cpu_supports("avx") != 0, "avx");
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("fma") != 0, "fma");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512bw") != 0, "avx512bw");
  add(__builtin_cpu_supports("avx512vnni") != 0, "avx512vnni");
  add(__builtin_cpu_supports("avx512bf16") != 0, "avx512bf16");
  add(std::ranges::count(cpu::supported_isas(), cpu::Isa::kAmxBf16) > 0, "amx-bf16");
#elif defined(__aarch64__)
  features.emplace_back("neon");
#endif
  return features;
}

#ifdef MXFA_HAS_DRIVER
/// One line for each device of a driver, or why there is none.
std::vector<std::string> device_lines(driver::DriverKind kind) {
  std::vector<std::string> lines;
  driver::DriverOptions options;
  options.kind = kind;
  try {
    const auto opened = std::make_shared<driver::Driver>(options);
    for (int i = 0; i < opened->device_count(); ++i) {
      const driver::Device device(opened, i);
      lines.push_back(fmt::format("{} ({}), driver {}.{}", device.name(), device.arch(),
                                  opened->version() / 1000, opened->version() % 1000 / 10));
    }
    if (lines.empty()) lines.emplace_back("none found");
  } catch (const Error& error) {
    lines.emplace_back(fmt::format("none ({})", error.what()));
  }
  return lines;
}
std::vector<std::string> gpu_lines() { return device_lines(driver::DriverKind::kCuda); }
std::vector<std::string> emulator_lines() { return device_lines(driver::DriverKind::kEmulator); }
constexpr const char* kCudaText = "yes";
#else
std::vector<std::string> gpu_lines() { return {"not looked for: built without CUDA"}; }
std::vector<std::string> emulator_lines() { return gpu_lines(); }
constexpr const char* kCudaText = "no";
#endif

std::string version_text() {
  return fmt::format("{}.{}.{}", MXFA_VERSION_MAJOR, MXFA_VERSION_MINOR, MXFA_VERSION_PATCH);
}

io::Json tensors_json(const io::SafetensorsReader& reader) {
  io::Json list = io::Json::array();
  for (const io::TensorEntry& entry : reader.tensors()) {
    list.push_back({{"name", entry.name},
                    {"dtype", entry.dtype_name},
                    {"shape", entry.shape},
                    {"bytes", entry.size_bytes}});
  }
  return list;
}

void print_system(const std::vector<std::string>& gpus, const std::vector<std::string>& emulators) {
  const std::vector<std::string> features = cpu_features();
  fmt::print("mxfa {} (commit {})\n", version_text(), kCommit);
  fmt::print("build     {}, {}, CUDA {}{}\n", compiler_name(), kBuildType, kCudaText,
             *kSanitizers ? fmt::format(", sanitizers {}", kSanitizers) : "");
  fmt::print(
      "cpu       {}, {} threads, {}\n", io::cpu_name(), core::num_threads(),
      features.empty() ? "no SIMD features known" : fmt::format("{}", fmt::join(features, " ")));
  for (const std::string& gpu : gpus) fmt::print("gpu       {}\n", gpu);
  for (const std::string& emulator : emulators) fmt::print("emulator  {}\n", emulator);
  fmt::print("\n");
  for (const MachineRow& row : kMachines) {
    fmt::print("{:<9} {}\n  ready: {}\n  not there yet: {}\n", row.name, row.arch, row.ready,
               row.missing);
  }
}

void print_tensors(const io::SafetensorsReader& reader) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "dtype", "shape", "bytes"}};
  std::uint64_t total = 0;
  for (const io::TensorEntry& entry : reader.tensors()) {
    rows.push_back({io::printable(entry.name), entry.dtype_name,
                    fmt::format("[{}]", fmt::join(entry.shape, ", ")),
                    fmt::format("{}", entry.size_bytes)});
    total += entry.size_bytes;
  }
  fmt::print("\n{}: {} tensors, {} bytes\n", reader.source(), reader.tensors().size(), total);
  fmt::print("{}", format_table(rows));
  for (const auto& [key, value] : reader.metadata()) {
    fmt::print("metadata {} = {}\n", io::printable(key), io::printable(value));
  }
}

ExitStatus run_info(const InfoOptions& options) {
  std::optional<io::SafetensorsReader> reader;
  if (!options.file.empty()) reader = io::SafetensorsReader::open(options.file);
  check_outputs({{"json", options.json}}, options.file);
  const std::vector<std::string> gpus = gpu_lines();
  const std::vector<std::string> emulators = emulator_lines();
  io::Record record = base_record("info", "mxfa");
  record.extra = {{"version", version_text()},
                  {"compiler", compiler_name()},
                  {"build_type", kBuildType},
                  {"cuda", std::string(kCudaText) == "yes"},
                  {"cpu_features", cpu_features()},
                  {"threads", core::num_threads()},
                  {"gpus", gpus},
                  {"emulators", emulators}};
  for (const MachineRow& row : kMachines) {
    record.extra["machines"].push_back({{"name", row.name},
                                        {"arch", row.arch},
                                        {"ready", row.ready},
                                        {"not_there_yet", row.missing}});
  }
  if (reader) {
    record.extra["file"] = reader->source();
    record.extra["tensors"] = tensors_json(*reader);
    record.extra["metadata"] = reader->metadata();
  }
  print_system(gpus, emulators);
  if (reader) print_tensors(*reader);
  write_json(options.json, {record});
  return kDone;
}

}  // namespace

Command add_info(CLI::App& root) {
  CLI::App* app = root.add_subcommand("info", "What this build and this machine can do");
  app->footer(
      "Shows the version, how it was built, the processor and the GPUs found, and for each kind\n"
      "of machine what works and what is not there yet. With a file: its tensors as well, checked\n"
      "strictly (offsets, sizes, overlaps), so it also tells whether a dump is sound.\n\n"
      "Examples:\n"
      "  mxfa info\n"
      "  mxfa info dump.safetensors --json dump.json");
  const auto options = std::make_shared<InfoOptions>();
  app->add_option("file", options->file, "A safetensors file to list")->type_name("FILE");
  add_json_option(*app, options->json);
  return {app, [options] { return run_info(*options); }};
}

}  // namespace mxfa::cli
