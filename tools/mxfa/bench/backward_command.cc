#include "bench/backward_command.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/device_bench.h"
#include "mxfa/error.h"
#ifdef MXFA_HAS_DRIVER
#include "device/backward_suite.h"
#endif

namespace mxfa::cli::bench {
namespace {

#ifdef MXFA_HAS_DRIVER

ExitStatus run_backward(const DeviceArguments& arguments) {
  static constexpr std::string_view kPresets[] = {"peer",   "dense", "causal",
                                                  "jagged", "all",   "tiny"};
  using namespace mxfa::bench;
  check_device_arguments(arguments, {kBackwardVariants, kPresets, std::span(kPresets).last(1)});
  const Device device(device_options(arguments));
  return run_speed_of<BackwardCase>(arguments, device, kBackwardVariants);
}

#else

ExitStatus run_backward(const DeviceArguments&) {
  throw Error(ErrorKind::kDevice, "device: this build has no device code (" MXFA_WITHOUT_CUDA ")");
}

#endif

}  // namespace

Command add_backward(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("backward", "Attention backward on a GPU");
  app->footer(
      "dQ, dK and dV on prepared operands, the preparation (q, k, v, dout), and the whole call\n"
      "from BF16, in turns; the fraction of cuBLASLt's FP8 GEMM rate in the same run; accuracy of\n"
      "what was timed against attention in float64, on rows and keys of one head. Host time of a\n"
      "call back to back.\n\n"
      "Presets: peer, dense, causal, jagged, all; on the emulator: tiny. Hopper only.\n"
      "Examples:\n"
      "  mxfa bench backward --preset jagged --json jagged.json --plot jagged.svg\n"
      "  mxfa bench backward --driver emulator --preset tiny");
  const auto arguments = std::make_shared<DeviceArguments>();
  add_device_options(*app, *arguments,
                     "What dQ is summed in, some of fp32, fp16, deterministic (fp32, in the order "
                     "of the keys); half, half-fp16: fp32 and fp16 with half scores; qk-bf16, "
                     "dp-bf16, bf16: S, dP or both from BF16; leak-free. Default: the first five");
  return {app, [arguments] {
            if (arguments->variants.empty()) {
              arguments->variants = {"fp32", "fp16", "deterministic", "half", "half-fp16"};
            }
            return run_backward(*arguments);
          }};
}

}  // namespace mxfa::cli::bench
