#include "kernel/forward_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "driver/device.h"
#include "kernels/sm100/forward/launch.h"
#include "mx/e8m0.h"
#include "mx/fp8.h"
#include "mxfa/error.h"
#include "reference/stream.h"

namespace mxfa::cli::kernel {
namespace {

namespace forward = sm100::forward;
using forward::PScale;

struct Named {
  const char* name;
  std::size_t offset;
  std::size_t size;  ///< of one of them
  int count;
};

template <class Config>
std::vector<Named> barrier_names() {
  using B = forward::Barriers<Config>;
  using S = forward::SmemPlan<Config>;
  const std::size_t at = offsetof(S, barriers);
  const auto named = [&](const char* name, std::size_t offset, std::size_t bytes) {
    return Named{name, at + offset, 8, static_cast<int>(bytes / 8)};
  };
#define MXFA_BARRIER(name) named(#name, offsetof(B, name), sizeof(B::name))
  return {MXFA_BARRIER(tile_full), MXFA_BARRIER(tile_empty),   MXFA_BARRIER(q_full),
          MXFA_BARRIER(q_empty),   MXFA_BARRIER(kv_full),      MXFA_BARRIER(kv_empty),
          MXFA_BARRIER(s_full),    MXFA_BARRIER(s_read),       MXFA_BARRIER(pv_ready),
          MXFA_BARRIER(o_full),    MXFA_BARRIER(message_full), MXFA_BARRIER(message_empty),
          MXFA_BARRIER(out_full),  MXFA_BARRIER(out_empty)};
#undef MXFA_BARRIER
}

template <class Config>
std::vector<Named> operand_names() {
  using S = forward::SmemPlan<Config>;
  const std::size_t atom = mx::kAtomBytes;
  return {{"q", offsetof(S, q), Config::kTileBytes, forward::kStreams},
          {"kv", offsetof(S, kv), Config::kTileBytes, Config::kStages},
          {"sf_q", offsetof(S, sf_q), atom, forward::kStreams},
          {"sf_kv", offsetof(S, sf_kv), atom, Config::kStages},
          {"sf_p", offsetof(S, sf_p), atom, forward::kStreams},
          {"sf_v", offsetof(S, sf_v), Config::kLeakFree ? atom : 0, 1}};
}

/// Calls body.template operator()<Config>() for the launch's kernel.
template <class Body>
auto with_config(const TracedLaunch& launch, Body body) {
  const auto of_dim = [&]<int kDim>() {
    if (launch.leak_free)
      return body.template operator()<forward::Config<kDim, PScale::kConstant, true>>();
    if (launch.p_scale == PScale::kConstant) {
      return body.template operator()<forward::Config<kDim, PScale::kConstant>>();
    }
    return body.template operator()<forward::Config<kDim, PScale::kBlockAmax>>();
  };
  return launch.head_dim == 64 ? of_dim.template operator()<64>()
                               : of_dim.template operator()<128>();
}

std::string name_at(const std::vector<Named>& names, std::int64_t offset) {
  for (const Named& named : names) {
    const std::int64_t from = offset - static_cast<std::int64_t>(named.offset);
    if (from < 0 || named.size == 0) continue;
    const auto index = from / static_cast<std::int64_t>(named.size);
    if (index < named.count) return fmt::format("{}[{}]", named.name, index);
  }
  return "";
}

/// A new folder that goes when the trace has been read.
class TraceFolder {
 public:
  TraceFolder() {
    std::string path = std::filesystem::temp_directory_path() / "mxfa-trace-XXXXXX";
    if (mkdtemp(path.data()) == nullptr)
      throw Error(ErrorKind::kIo, fmt::format("{}: {}", path, std::strerror(errno)));
    path_ = path;
  }
  ~TraceFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TraceFolder(const TraceFolder&) = delete;
  TraceFolder& operator=(const TraceFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A dense operand of one sequence and one head with scales of 1.
class Operand {
 public:
  Operand(const driver::Device& device, std::int64_t rows, int head_dim, ScaleAxis axis,
          std::uint64_t seed)
      : rows_(device, static_cast<std::size_t>(rows * head_dim)),
        atoms_(device, static_cast<std::size_t>(mx::ceil_div(rows, 128) * mx::kAtomBytes)) {
    std::vector<std::uint8_t> codes;
    for (const double value : reference::Stream(seed, 0).normals(rows * head_dim)) {
      codes.push_back(mx::encode_e4m3(static_cast<float>(value)));
    }
    rows_.upload(codes.data(), codes.size());
    const std::vector<std::uint8_t> scales(
        static_cast<std::size_t>(mx::ceil_div(rows, 128) * mx::kAtomBytes), mx::kE8M0Bias);
    atoms_.upload(scales.data(), scales.size());
    operand_ = {.rows = reinterpret_cast<const std::uint8_t*>(rows_.address()),
                .token_stride = head_dim,
                .head_stride = head_dim,
                .atoms = reinterpret_cast<const std::uint8_t*>(atoms_.address()),
                .head_bytes = mx::ceil_div(rows, 128) * mx::kAtomBytes,
                .axis = axis,
                .offsets = {.batch = 1, .seqlen = rows},
                .total = rows,
                .num_heads = 1,
                .head_dim = head_dim};
  }
  const device::BlockScaledOperand& operand() const { return operand_; }

 private:
  driver::DeviceBuffer rows_, atoms_;
  device::BlockScaledOperand operand_;
};

void run_forward(const TracedLaunch& launch, const std::string& folder) {
  driver::DriverOptions options;
  options.kind = driver::DriverKind::kEmulator;
  options.arch = launch.arch;
  options.emulator.multiprocessors = 1;
  options.emulator.policy = "timed";
  options.emulator.strict = false;  // what the ISA leaves to the order of issue
  options.emulator.trace_folder = folder;
  const driver::Device device(std::make_shared<const driver::Driver>(options), 0);
  driver::KernelCache kernels(device, sm100::kernel_images());
  const driver::Stream stream(device);
  const int dim = launch.head_dim;
  const Operand q(device, launch.seqlen_q, dim, ScaleAxis::kHeadDim, 1);
  const Operand k(device, launch.seqlen_k, dim, ScaleAxis::kHeadDim, 2);
  const Operand v(device, launch.seqlen_k, dim,
                  launch.leak_free ? ScaleAxis::kHeadDim : ScaleAxis::kTokens, 3);
  const driver::DeviceBuffer o(device, static_cast<std::size_t>(launch.seqlen_q * dim) * 2);
  const driver::DeviceBuffer lse(device, static_cast<std::size_t>(launch.seqlen_q) * 4);
  forward::attention_forward({device, kernels, stream.handle()},
                             {.q = q.operand(),
                              .k = k.operand(),
                              .v = v.operand(),
                              .leak_free = launch.leak_free,
                              .softmax_scale = 1.0 / std::sqrt(static_cast<double>(dim)),
                              .p_scale = launch.p_scale,
                              .o = reinterpret_cast<std::uint16_t*>(o.address()),
                              .o_token_stride = dim,
                              .o_head_stride = dim,
                              .lse = reinterpret_cast<float*>(lse.address()),
                              .lse_head_stride = launch.seqlen_q});
  stream.synchronize();
}

/// "tcgen05.wait::ld" of "\t@p tcgen05.wait::ld.sync.aligned;".
std::string opcode(const std::string& text) {
  std::size_t begin = text.find_first_not_of(" \t{");
  if (begin != std::string::npos && text[begin] == '@') {
    begin = text.find_first_not_of(" \t", text.find_first_of(" \t", begin));
  }
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_first_of(" \t;", begin) - begin);
}

ForwardTrace read_trace(const TracedLaunch& launch, const std::filesystem::path& file) {
  std::ifstream stream(file);
  const nlohmann::json json = nlohmann::json::parse(stream);
  const std::vector<Named> barriers =
      with_config(launch, []<class Config>() { return barrier_names<Config>(); });
  ForwardTrace trace;
  std::map<std::int64_t, std::size_t> open;
  for (const auto& event : json.at("traceEvents")) {
    const std::string kind = event.at("ph");
    if (kind == "M") continue;
    const std::uint64_t time = event.at("ts");
    if (kind == "b") {
      const auto& args = event.at("args");
      Operation operation{.begin = time,
                          .end = time,
                          .warp = args.at("warp"),
                          .what = event.at("name"),
                          .text = args.at("text"),
                          .tensor = {},
                          .shared = {}};
      for (const auto& touch : args.at("touches")) {
        const std::string space = touch.at("space");
        if (space == "global") continue;
        (space == "tensor" ? operation.tensor : operation.shared)
            .push_back({touch.at("writes"), touch.at("begin"), touch.at("size")});
      }
      open[event.at("id")] = trace.operations.size();
      trace.operations.push_back(std::move(operation));
    } else if (kind == "e") {
      trace.operations[open.at(event.at("id"))].end = time;
    } else if (event.at("name") == "wait") {
      const auto& args = event.at("args");
      const std::int64_t barrier = args.value("barrier", std::int64_t{-1});
      trace.waits.push_back(
          {time, time + event.at("dur").get<std::uint64_t>(), event.at("tid"),
           barrier >= 0 ? name_at(barriers, barrier) : opcode(args.at("text").get<std::string>())});
    }
  }
  for (const auto& entry : json.at("executed")) {
    const std::string line = fmt::format("{}", entry.at(1).get<int>());
    trace.executed[entry.at(0)][opcode(json.at("lines").at(line).get<std::string>())] +=
        entry.at(2).get<std::uint64_t>();
  }
  for (const Operation& operation : trace.operations) {
    trace.end = std::max(trace.end, operation.end);
  }
  std::ranges::stable_sort(trace.waits, {}, [](const Wait& wait) { return wait.end; });
  return trace;
}

}  // namespace

ForwardTrace trace_forward(const TracedLaunch& launch) {
  const TraceFolder folder;
  run_forward(launch, folder.path().string());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("attention_forward") && name.ends_with(".json")) {
      return read_trace(launch, entry.path());
    }
  }
  throw Error(ErrorKind::kDevice, "emulator: wrote no trace of the launch");
}

std::string role_of(int warp) {
  if (warp < forward::kCorrectionWarp) {
    return fmt::format("softmax {}", warp / forward::kSoftmaxWarps);
  }
  if (warp < forward::kMmaWarp) return "correction";
  if (warp == forward::kMmaWarp) return "mma";
  return warp == forward::kEpilogueWarp ? "epilogue" : "load";
}

std::string signaller_of(const std::string& wait) {
  const std::string name = wait.substr(0, wait.find('['));
  if (name == "q_full" || name == "kv_full") return "copy engine";
  if (name == "s_full" || name == "o_full" || name == "q_empty" || name == "kv_empty") {
    return "tensor cores";
  }
  if (name == "s_read" || name == "message_full") return "softmax";
  if (name == "pv_ready") return "softmax, correction";
  if (name == "message_empty" || name == "out_full") return "correction";
  return name == "out_empty" ? "epilogue" : "";
}

std::string shared_operand(const TracedLaunch& launch, int offset) {
  return name_at(with_config(launch, []<class Config>() { return operand_names<Config>(); }),
                 offset);
}

}  // namespace mxfa::cli::kernel
