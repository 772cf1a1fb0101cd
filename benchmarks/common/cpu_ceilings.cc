#include "common/cpu_ceilings.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "common/operands.h"
#include "core/parallel.h"
#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// GCC 12's intrinsics start from vectors that are undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace mxfa::bench {
namespace {

/// A loop that keeps one unit busy; returns the operations done. `sink` is what it computed.
using Chain = double (*)(std::int64_t steps, float* sink);

double fma_portable(std::int64_t steps, float* sink) {
  constexpr int kLanes = 64;
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = static_cast<float>(i);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kLanes; ++i) sums[i] = sums[i] * 0.999f + 0.5f;
  }
  for (const float sum : sums) *sink += sum;
  return 2.0 * kLanes * static_cast<double>(steps);
}

#if defined(__x86_64__)
constexpr int kChains = 16;  // latency times throughput of every unit, and below 32 registers

__attribute__((target("avx2,fma"))) double fma_avx2(std::int64_t steps, float* sink) {
  constexpr int kRegisters = 12;  // of 16
  __m256 sums[kRegisters];
  for (int i = 0; i < kRegisters; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.5f);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kRegisters; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  for (const __m256& sum : sums) *sink += _mm256_cvtss_f32(sum);
  return 2.0 * 8 * kRegisters * static_cast<double>(steps);
}

__attribute__((target("avx512f"))) double fma_avx512(std::int64_t steps, float* sink) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.5f);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  for (const __m512& sum : sums) *sink += _mm512_cvtss_f32(sum);
  return 2.0 * 16 * kChains * static_cast<double>(steps);
}

__attribute__((target("avx512f,avx512bf16"))) double dot_avx512(std::int64_t steps, float* sink) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3F80);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], one, one);
  }
  for (const __m512& sum : sums) *sink += _mm512_cvtss_f32(sum);
  return 4.0 * 16 * kChains * static_cast<double>(steps);
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t column_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Six sums, more than the latency of a product asks for, of values that toggle bits.
__attribute__((target("amx-tile,amx-bf16"))) double dot_amx(std::int64_t steps, float* sink) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.column_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  alignas(64) std::uint16_t operands[2][16 * 32];
  std::uint32_t state = 1;
  for (auto& operand : operands) {
    for (std::uint16_t& value : operand) {
      state = state * 1664525u + 1013904223u;
      // A random sign and mantissa, magnitudes from 2^-3 to 1.
      value =
          static_cast<std::uint16_t>((state >> 16 & 0x80FFu) | (0x3E00u - (state >> 20 & 0x100u)));
    }
  }
  alignas(64) float values[16 * 16];
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_loadd(6, operands[0], 64);
  _tile_loadd(7, operands[1], 64);
  for (std::int64_t step = 0; step < steps; ++step) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(0, values, 64);
  _tile_release();
  *sink += values[0];
  return 6.0 * 2 * 16 * 16 * 32 * static_cast<double>(steps);
}

bool has_avx512() { return __builtin_cpu_supports("avx512f"); }
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

Chain fp32_chain() {
#if defined(__x86_64__)
  if (has_avx512()) return fma_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fma_avx2;
#endif
  return fma_portable;
}

/// TFLOP/s of the fastest run.
double measure_chain(Chain chain, const RunPlan& plan) {
  constexpr std::int64_t kSteps = 400'000;
  const int threads = core::num_threads();
  std::vector<float> sinks(static_cast<std::size_t>(threads));
  std::vector<double> operations(static_cast<std::size_t>(threads));
  const std::function<void()> body = [&] {
    core::parallel_for(threads, [&](std::int64_t i) {
      operations[static_cast<std::size_t>(i)] = chain(kSteps, &sinks[static_cast<std::size_t>(i)]);
    });
  };
  const Samples samples = time_alternating({&body, 1}, plan).front();
  const double best = *std::min_element(samples.wall_ms.begin(), samples.wall_ms.end());
  return operations.front() * threads / best * 1e-9;
}

double measure_copy(const RunPlan& plan) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 28, kPart = std::int64_t{1} << 22;
  Values<char> from(kBytes, 1), to(kBytes, 2);
  const std::function<void()> body = [&] {
    core::parallel_for(kBytes / kPart, [&](std::int64_t i) {
      std::memcpy(to.data() + i * kPart, from.data() + i * kPart, kPart);
    });
  };
  const Samples samples = time_alternating({&body, 1}, plan).front();
  const double best = *std::min_element(samples.wall_ms.begin(), samples.wall_ms.end());
  return 2.0 * static_cast<double>(kBytes) / best * 1e-6;
}

}  // namespace

CpuCeilings measure_cpu_ceilings(const RunPlan& plan) {
  CpuCeilings ceilings;
  ceilings.fp32_fma_tflops = measure_chain(fp32_chain(), plan);
#if defined(__x86_64__)
  if (cpu::amx_usable()) {
    ceilings.bf16_matrix = {"amx_bf16_tflops", measure_chain(dot_amx, plan)};
  } else if (has_avx512_bf16()) {
    ceilings.bf16_matrix = {"avx512_bf16_tflops", measure_chain(dot_avx512, plan)};
  }
#endif
  ceilings.copy_gbps = measure_copy(plan);
  return ceilings;
}

}  // namespace mxfa::bench
