#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "model/tcgen05_cp.h"
#include "model/tcgen05_mma.h"

/// The emulator's model of tcgen05.mma and .cp, in multiply-adds and bytes a second of CPU time on
/// one core. Shapes: M = 128, N = the argument, K = 32.
namespace mxfa::emu::model {
namespace {

struct Machine {
  std::vector<std::byte> smem = std::vector<std::byte>(65536);
  TensorMemory tmem;
  Machine() {
    std::mt19937 rng(1);
    for (auto& byte : smem) byte = static_cast<std::byte>(rng() % 0x78);
    tmem.alloc(512);
    for (std::uint32_t cell = 0; cell < 128 * 32; ++cell) {
      // Scales near 1, which are small numbers in E4M3 as well.
      tmem.write(cell / 32, cell % 32, cell % 32 < 16 ? 0x7F7E7F80u : 0x38B0403Cu);
    }
  }
};

void run_mma(benchmark::State& state, ArithmeticMode mode, bool mn_major, bool a_in_tmem) {
  Machine machine;
  MmaUnit unit(mode);
  const auto n = static_cast<std::uint32_t>(state.range(0));
  Tcgen05Mma mma;
  mma.idesc = decode_instruction_descriptor(
      MmaKind::kMxF8F6F4, 0x08800000 | n / 8 << 17 | (mn_major ? 1u << 16 : 0u), 1);
  mma.d = 256;
  mma.sfb = 4;
  if (a_in_tmem) {
    mma.a_tmem = 16;
  } else {
    mma.a = decode_tcgen05_descriptor(0x4000404000000000);
  }
  mma.b =
      decode_tcgen05_descriptor((mn_major ? 0x4000404001000000 : 0x4000404000000000) | 16384 >> 4);
  const MmaCta cta{{machine.smem}, &machine.tmem};
  mma.enable_input_d = false;
  tcgen05_mma(mma, {&cta, 1}, unit);
  mma.enable_input_d = true;
  for (auto _ : state) tcgen05_mma(mma, {&cta, 1}, unit);
  state.counters["MAC/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 128.0 * static_cast<double>(n) * 32.0,
      benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(run_mma, exact, ArithmeticMode::kExact, false, false)->Arg(128)->Arg(256);
BENCHMARK_CAPTURE(run_mma, exact_n_major, ArithmeticMode::kExact, true, false)->Arg(128);
BENCHMARK_CAPTURE(run_mma, exact_a_in_tmem, ArithmeticMode::kExact, false, true)->Arg(128);
BENCHMARK_CAPTURE(run_mma, blackwell, ArithmeticMode::kBlackwell, false, false)->Arg(128);

void copy_scales(benchmark::State& state) {
  Machine machine;
  const TensorCopy copy{CpShape::k32x128bWarpx4, CpFormat::kPlain, 0,
                        decode_tcgen05_descriptor(0x0000400800000000)};
  for (auto _ : state) tcgen05_cp(copy, {machine.smem}, machine.tmem);
  state.SetBytesProcessed(state.iterations() * 512);
}
BENCHMARK(copy_scales);

}  // namespace
}  // namespace mxfa::emu::model

BENCHMARK_MAIN();
