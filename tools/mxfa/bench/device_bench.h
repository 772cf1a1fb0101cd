#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#ifdef MXFA_HAS_DRIVER
#include "device/call_suite.h"
#include "mxfa/device.h"
#endif

/// What `mxfa bench forward` and `mxfa bench backward` share.
namespace mxfa::cli::bench {

struct DeviceArguments {
  std::string preset = "peer";
  std::vector<std::string> variants = {};  ///< empty: the command's default
  std::string driver = "cuda";
  std::optional<std::string> arch = std::nullopt;  ///< of the emulator
  std::optional<int> ordinal = std::nullopt;       ///< of the GPU
  std::string driver_name = {};
  std::string cublaslt = {};
  int runs = 30;
  std::string json = {};
  std::string plot = {};

  bool emulated() const { return driver == "emulator"; }
  std::string emulated_arch() const { return arch.value_or("sm_90a"); }
};

/// `variants`: what --variants may hold, for its help.
void add_device_options(CLI::App& app, DeviceArguments& arguments, const std::string& variants);

#ifdef MXFA_HAS_DRIVER

/// What a command takes.
struct KnownNames {
  std::span<const std::string_view> variants;
  std::span<const std::string_view> presets, emulator_presets;
};
/// Throws Error where an option is not known, or means nothing where the command runs.
void check_device_arguments(const DeviceArguments& arguments, const KnownNames& known);
DeviceOptions device_options(const DeviceArguments& arguments);
/// Their places among the known ones.
template <class Variant>
std::vector<Variant> variants_of(const DeviceArguments& arguments,
                                 std::span<const std::string_view> known) {
  std::vector<Variant> result;
  for (const std::string& variant : arguments.variants) {
    const auto found = std::find(known.begin(), known.end(), variant);
    result.push_back(static_cast<Variant>(found - known.begin()));
  }
  return result;
}
std::string driver_text(const DeviceArguments& arguments, const Device& device);

/// A benchmark of speed.
struct SpeedBench {
  std::string command;  ///< "mxfa bench forward"
  std::string title;    ///< of its chart
  std::function<std::vector<io::Record>(const std::vector<mxfa::bench::AttentionCase>& cases,
                                        const mxfa::bench::SpeedOptions& options,
                                        const std::function<void()>& done)>
      records;  ///< one for each case and variant
  std::function<std::vector<io::Record>()> host_time;
};
/// Runs it, prints and writes what it says.
ExitStatus run_speed(const DeviceArguments& arguments, const Device& device,
                     const SpeedBench& bench);
/// Call: ForwardCase or BackwardCase.
template <class Call>
ExitStatus run_speed_of(const DeviceArguments& arguments, const Device& device,
                        std::span<const std::string_view> known_variants) {
  using namespace mxfa::bench;
  const auto variants = variants_of<typename Call::Variant>(arguments, known_variants);
  return run_speed(arguments, device,
                   {.command = fmt::format("mxfa bench {}", Call::kName),
                    .title = fmt::format("Attention {}", Call::kName),
                    .records =
                        [&](const auto& cases, const auto& options, const auto& done) {
                          return speed_records<Call>(device, cases, variants, options, done);
                        },
                    .host_time = [&] { return host_time_records<Call>(device); }});
}

#endif

}  // namespace mxfa::cli::bench
