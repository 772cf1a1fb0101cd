#include "device/cublaslt.h"

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "device/events.h"

// The few calls of cublasLt.h that are made, declared here: a build needs no cuBLAS.
namespace mxfa::bench {
namespace {

using Status = int;
using Handle = void*;

constexpr int kCompute32F = 68;
constexpr int kR32F = 0;
constexpr int kR16BF = 14;
constexpr int kR8FE4M3 = 28;
constexpr int kDescTransA = 3;
constexpr int kDescAScale = 17;
constexpr int kDescBScale = 18;
constexpr int kPreferenceMaxWorkspace = 1;
constexpr std::int32_t kTransposed = 1;
constexpr std::int64_t kSize = 8192;

struct Heuristic {
  std::uint64_t algo[8];
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

/// The library's calls; throws where one is missing or fails.
class CublasLt {
 public:
  explicit CublasLt(const std::string& library) {
    std::vector<std::string> names{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    if (!library.empty()) names = {library};
    for (const std::string& name : names) {
      if (library_ == nullptr) library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library_ == nullptr) throw std::runtime_error("no libcublasLt");
  }
  /// It owns threads: never unmapped.
  template <class... Args>
  void call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<Status (*)(Args...)>(dlsym(library_, name));
    if (function == nullptr || function(args...) != 0) throw std::runtime_error(name);
  }

 private:
  void* library_ = nullptr;
};

class Gemm {
 public:
  Gemm(const driver::Device& device, const CublasLt& lt)
      : device_(device),
        lt_(lt),
        a_(device, kSize * kSize),
        b_(device, kSize * kSize),
        d_(device, 2 * kSize * kSize),
        scale_(device, sizeof(float)),
        workspace_(device, kWorkspaceBytes) {
    std::vector<std::uint8_t> payload(kSize * kSize);
    for (std::size_t i = 0; i < payload.size(); ++i) {
      const std::uint16_t bits = normal_noise()[i % kNoisePeriod];
      // Codes of 0.5 to 4 in magnitude, random mantissas and signs.
      payload[i] = static_cast<std::uint8_t>((bits >> 8 & 0x80) | (0x30 + bits % 32));
    }
    a_.upload(payload.data(), payload.size());
    b_.upload(payload.data(), payload.size());
    const float one = 1.0f;
    scale_.upload(&one, sizeof one);
    create();
  }
  void run(CUstream stream) const {
    const float one = 1.0f, zero = 0.0f;
    lt_.call("cublasLtMatmul", handle_, desc_, static_cast<const void*>(&one), pointer(a_),
             a_layout_, pointer(b_), b_layout_, static_cast<const void*>(&zero), pointer(d_),
             d_layout_, const_cast<void*>(pointer(d_)), d_layout_,
             static_cast<const void*>(heuristic_.algo), const_cast<void*>(pointer(workspace_)),
             std::size_t{kWorkspaceBytes}, stream);
  }

 private:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

  static const void* pointer(const driver::DeviceBuffer& buffer) {
    return reinterpret_cast<const void*>(buffer.address());
  }
  Handle layout(int type) const {
    Handle result = nullptr;
    lt_.call("cublasLtMatrixLayoutCreate", &result, type, std::uint64_t{kSize},
             std::uint64_t{kSize}, kSize);
    return result;
  }
  template <class T>
  void set(int attribute, T value) const {
    lt_.call("cublasLtMatmulDescSetAttribute", desc_, attribute, static_cast<const void*>(&value),
             sizeof value);
  }
  void create() {
    const driver::CurrentDevice current(device_);
    lt_.call("cublasLtCreate", &handle_);
    lt_.call("cublasLtMatmulDescCreate", &desc_, kCompute32F, kR32F);
    set(kDescTransA, kTransposed);
    set(kDescAScale, pointer(scale_));
    set(kDescBScale, pointer(scale_));
    a_layout_ = layout(kR8FE4M3);
    b_layout_ = layout(kR8FE4M3);
    d_layout_ = layout(kR16BF);
    Handle preference = nullptr;
    const std::size_t most = kWorkspaceBytes;
    lt_.call("cublasLtMatmulPreferenceCreate", &preference);
    lt_.call("cublasLtMatmulPreferenceSetAttribute", preference, kPreferenceMaxWorkspace,
             static_cast<const void*>(&most), sizeof most);
    int found = 0;
    lt_.call("cublasLtMatmulAlgoGetHeuristic", handle_, desc_, a_layout_, b_layout_, d_layout_,
             d_layout_, preference, 1, &heuristic_, &found);
    if (found == 0) throw std::runtime_error("no FP8 GEMM");
  }

  const driver::Device& device_;
  const CublasLt& lt_;
  driver::DeviceBuffer a_, b_, d_, scale_, workspace_;
  Handle handle_ = nullptr, desc_ = nullptr;
  Handle a_layout_ = nullptr, b_layout_ = nullptr, d_layout_ = nullptr;
  Heuristic heuristic_ = {};
};

}  // namespace

std::optional<double> measure_fp8_gemm_tflops(const driver::Device& device,
                                              const std::string& library) {
  try {
    const CublasLt lt(library);
    const Gemm gemm(device, lt);
    const driver::CurrentDevice current(device);
    const driver::Stream stream(device);
    const io::TimingRecord timing = event_timing(
        device, stream.handle(), [&] { gemm.run(stream.handle()); }, {.warm_ups = 5, .runs = 20});
    return 2.0 * kSize * kSize * kSize / timing.ms_median * 1e-9;
  } catch (const Error&) {  // the device's
    throw;
  } catch (const std::runtime_error&) {  // told by the absence of a ceiling
    return std::nullopt;
  }
}

}  // namespace mxfa::bench
