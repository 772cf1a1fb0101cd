// PyTorch's tensors to mxfa's attention and back: the compiled half of the package mxfa_torch.
// Nothing here is CUDA's, so that one compiler builds it for every torch.
#include <mxfa/mxfa.h>
#include <torch/extension.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>

namespace {

using mxfa::attention::Options;
using MaybeTensor = std::optional<at::Tensor>;

mxfa::DType dtype_of(const at::Tensor& tensor, const std::string& name) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return mxfa::DType::kBF16;
    case at::kHalf:
      return mxfa::DType::kF16;
    case at::kFloat:
      return mxfa::DType::kF32;
    case at::kDouble:
      return mxfa::DType::kF64;
    case at::kInt:
      return mxfa::DType::kI32;
    case at::kLong:
      return mxfa::DType::kI64;
    default:
      TORCH_CHECK_VALUE(false, name, ": expected bf16, i32 or i64 values, got ",
                        tensor.scalar_type());
  }
}

/// A tensor that is not given (None) is a view of rank 0, as everywhere in mxfa.
mxfa::TensorView view(const MaybeTensor& tensor, const std::string& name, at::Device device) {
  if (!tensor) return {};
  TORCH_CHECK_VALUE(tensor->layout() == at::kStrided, name, ": expected a strided tensor, got ",
                    tensor->layout());
  TORCH_CHECK_VALUE(tensor->device() == device, name, ": expected a tensor on ", device,
                    ", where q is, got one on ", tensor->device());
  const at::IntArrayRef sizes = tensor->sizes();
  mxfa::TensorView result = mxfa::make_tensor(tensor->data_ptr(), dtype_of(*tensor, name),
                                              std::span(sizes.data(), sizes.size()));
  std::ranges::copy(tensor->strides(), result.strides.begin());
  return result;
}

mxfa::Tensor rows(const MaybeTensor& tensor, const std::string& name, at::Device device) {
  return {view(tensor, name, device), {}};
}

const mxfa::Device& cuda_device(int ordinal) {
  static std::mutex mutex;
  // Not destroyed at exit, when the driver may be gone already.
  static auto& devices = *new std::map<int, mxfa::Device>;
  const std::lock_guard lock(mutex);
  return devices.try_emplace(ordinal, mxfa::DeviceOptions{.ordinal = ordinal}).first->second;
}

/// `stream`: of `device`, where that is a GPU.
Options placed(Options options, at::Device device, std::uintptr_t stream) {
  options.recipe = mxfa::attention::Recipe::kHopper;  // on a CPU too: what a Hopper GPU computes
  options.deterministic = options.deterministic || at::globalContext().deterministicAlgorithms();
  if (device.is_cuda()) {
    options.device = &cuda_device(device.index());
    options.stream = reinterpret_cast<void*>(stream);
    options.recipe = mxfa::attention::native_recipe(*options.device);
  }
  return options;
}

/// Bytes of the caching allocator, which keeps them for this stream's work when the call returns.
class Workspace {
 public:
  Workspace(std::int64_t size_bytes, const at::Tensor& like)
      : bytes_(
            at::empty({std::max<std::int64_t>(size_bytes, 1)}, like.options().dtype(at::kByte))) {}

  std::span<std::byte> span() const {
    return {static_cast<std::byte*>(bytes_.data_ptr()), static_cast<std::size_t>(bytes_.numel())};
  }

 private:
  at::Tensor bytes_;
};

/// mxfa::Error as what Python raises, with the same text.
template <typename Call>
auto translated(const Call& call) {
  try {
    return call();
  } catch (const mxfa::Error& error) {
    TORCH_CHECK_VALUE(error.kind() != mxfa::ErrorKind::kInvalidArgument, error.what());
    TORCH_CHECK_NOT_IMPLEMENTED(error.kind() != mxfa::ErrorKind::kUnsupported, error.what());
    TORCH_CHECK(false, error.what());
  }
}

/// q, k, v, cu_seqlens_q, cu_seqlens_k; a backward's go on with o, lse, row_max.
using Inputs = std::array<MaybeTensor, 5>;
using Saved = std::array<MaybeTensor, 8>;

template <typename Tensors>
mxfa::attention::ForwardArgs forward_args(const Tensors& tensors) {
  const at::Device device = tensors[0]->device();
  return {.q = rows(tensors[0], "q", device),
          .k = rows(tensors[1], "k", device),
          .v = rows(tensors[2], "v", device),
          .cu_seqlens_q = view(tensors[3], "cu_seqlens_q", device),
          .cu_seqlens_k = view(tensors[4], "cu_seqlens_k", device)};
}

/// o, as q but without gaps; lse and row_max [num_heads, rows of o].
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const Inputs& inputs, const Options& given,
                                                       std::uintptr_t stream) {
  return translated([&] {
    const at::Tensor& q = inputs[0].value();
    const Options options = placed(given, q.device(), stream);
    mxfa::attention::ForwardArgs args = forward_args(inputs);
    const std::int64_t tokens = q.dim() == 3 ? q.size(0) : q.size(0) * q.size(1);
    const at::Tensor o = at::empty(q.sizes(), q.options());
    const at::Tensor lse = at::empty({q.size(-2), tokens}, q.options().dtype(at::kFloat));
    const at::Tensor row_max = at::empty_like(lse);
    args.o = rows(o, "o", q.device());
    args.lse = view(lse, "lse", q.device());
    args.row_max = view(row_max, "row_max", q.device());
    const Workspace workspace(mxfa::attention::forward_workspace_bytes(args, options), q);
    mxfa::attention::forward(args, options, workspace.span());
    return std::tuple(o, lse, row_max);
  });
}

/// Gradients of q, k and v, those that are wanted.
std::array<MaybeTensor, 3> backward(const Saved& saved, const at::Tensor& dout,
                                    const std::array<bool, 3>& wanted, const Options& given,
                                    std::uintptr_t stream) {
  return translated([&] {
    const at::Tensor& q = saved[0].value();
    const at::Device device = q.device();
    const Options options = placed(given, device, stream);
    mxfa::attention::ForwardArgs of_forward = forward_args(saved);
    of_forward.o = rows(saved[5], "o", device);
    of_forward.lse = view(saved[6], "lse", device);
    of_forward.row_max = view(saved[7], "row_max", device);
    mxfa::attention::BackwardArgs args =
        mxfa::attention::backward_args(of_forward, rows(dout, "dout", device));
    std::array<MaybeTensor, 3> gradients;
    const std::array<mxfa::Tensor*, 3> outputs{&args.dq, &args.dk, &args.dv};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!wanted[i]) continue;
      gradients[i] = at::empty(saved[i]->sizes(), saved[i]->options());
      *outputs[i] = rows(gradients[i], "gradient", device);
    }
    const Workspace workspace(mxfa::attention::backward_workspace_bytes(args, options), q);
    mxfa::attention::backward(args, options, workspace.span());
    return gradients;
  });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using mxfa::CausalAlignment;
  py::class_<Options>(module, "Options")
      .def(py::init<>())
      .def_readwrite("causal", &Options::causal)
      .def_readwrite("softmax_scale", &Options::softmax_scale)
      .def_readwrite("window_left", &Options::window_left)
      .def_readwrite("window_right", &Options::window_right)
      .def_readwrite("deterministic", &Options::deterministic)
      .def_readwrite("half_scores", &Options::half_scores)
      .def_readwrite("qk_bf16", &Options::qk_bf16)
      .def_readwrite("dp_bf16", &Options::dp_bf16)
      .def_readwrite("leak_free", &Options::leak_free)
      .def_property(
          "top_left",
          [](const Options& o) { return o.causal_alignment == CausalAlignment::kTopLeft; },
          [](Options& o, bool top_left) {
            o.causal_alignment =
                top_left ? CausalAlignment::kTopLeft : CausalAlignment::kBottomRight;
          });
  module.def("forward", torch::wrap_pybind_function_no_gil(forward));
  module.def("backward", torch::wrap_pybind_function_no_gil(backward));
}
