#include "sqnr/input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "io/safetensors.h"
#include "mx/bits.h"
#include "reference/datasets.h"

namespace mxfa::cli::sqnr {
namespace {

using reference::Matrix;

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

/// Element `index` of a tensor for which is_float() holds.
float element(const io::HostTensor& tensor, std::int64_t index) {
  const std::byte* at =
      tensor.bytes.data() + static_cast<std::size_t>(index) * dtype_size(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t code;
  std::memcpy(&code, at, sizeof(code));
  return tensor.dtype == DType::kF16 ? mx::decode_f16(code) : mx::decode_bf16(code);
}

std::string shape_text(const io::HostTensor& tensor) { return describe(tensor.view()); }

io::HostTensor read_float(const io::SafetensorsReader& reader, const std::string& name) {
  io::HostTensor tensor = reader.read(name);
  core::expect(is_float(tensor.dtype), name, "dtype f32, f16 or bf16",
               std::string(dtype_name(tensor.dtype)));
  const std::size_t rank = tensor.shape.size();
  core::expect(rank == 3 || rank == 4, name,
               "[batch, seqlen, num_heads, head_dim], or packed [total, num_heads, head_dim] with "
               "cu_seqlens",
               shape_text(tensor));
  core::expect(tensor.shape[rank - 2] >= 1 && tensor.shape[rank - 1] >= 1, name,
               "at least one head and channel", shape_text(tensor));
  return tensor;
}

/// Offsets of `batch` sequences of equal length.
std::vector<std::int32_t> uniform_offsets(std::int64_t batch, std::int64_t seqlen,
                                          const std::string& name) {
  constexpr std::int64_t kMaxBatch = std::int64_t{1} << 24;  // sequences without rows cost nothing
  core::expect(batch <= kMaxBatch, name, fmt::format("at most {} sequences", kMaxBatch),
               core::text(batch));
  core::expect(batch * seqlen <= INT32_MAX, name, "fewer than 2^31 rows",
               core::text(batch * seqlen));
  std::vector<std::int32_t> offsets;
  for (std::int64_t s = 0; s <= batch; ++s)
    offsets.push_back(static_cast<std::int32_t>(s * seqlen));
  return offsets;
}

std::vector<std::int32_t> read_offsets(const io::SafetensorsReader& reader,
                                       const std::string& name) {
  const bool shared = reader.find(name) == nullptr && reader.find("cu_seqlens") != nullptr;
  const std::string found = shared ? "cu_seqlens" : name;
  const io::HostTensor tensor = reader.read(found);
  core::expect(tensor.shape.size() == 1, found, "[batch + 1]", shape_text(tensor));
  return io::to_i32(tensor, found);
}

/// Offsets of one side, from the tensor's own batch dimension or from the file.
std::vector<std::int32_t> offsets_of(const io::SafetensorsReader& reader,
                                     const io::HostTensor& tensor, const std::string& tensor_name,
                                     const std::string& offsets_name) {
  if (tensor.shape.size() == 3) return read_offsets(reader, offsets_name);
  for (const std::string& name : {offsets_name, std::string("cu_seqlens")}) {
    core::expect(reader.find(name) == nullptr, tensor_name,
                 fmt::format("packed [total, num_heads, head_dim], because the file has {}",
                             io::printable(name)),
                 shape_text(tensor));
  }
  return uniform_offsets(tensor.shape[0], tensor.shape[1], tensor_name);
}

/// [batch, seqlen, ...] becomes [batch * seqlen, ...]; packed tensors stay.
void pack(io::HostTensor& tensor) {
  if (tensor.shape.size() == 3) return;
  tensor.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2], tensor.shape[3]};
}

/// Refuses NaN and infinities in the rows that belong to sequences.
void expect_finite(const io::HostTensor& tensor, const std::string& name, std::int64_t rows) {
  const std::int64_t heads = tensor.shape[1];
  const std::int64_t head_dim = tensor.shape[2];
  std::int64_t nans = 0;
  std::int64_t infinities = 0;
  std::int64_t first = -1;
  for (std::int64_t i = 0; i < rows * heads * head_dim; ++i) {
    const float value = element(tensor, i);
    if (mx::is_finite(value)) continue;
    ++(mx::is_nan(value) ? nans : infinities);
    if (first < 0) first = i;
  }
  core::expect(first < 0, name, "finite values (attention over any other is NaN in every scheme)",
               fmt::format("{} NaN and {} infinite, the first at [row {}, head {}, channel {}]",
                           nans, infinities, first / (heads * head_dim), first / head_dim % heads,
                           first % head_dim));
}

void expect_like(const io::HostTensor& tensor, const std::string& name, const io::HostTensor& other,
                 const std::string& other_name) {
  core::expect(tensor.shape == other.shape, name,
               fmt::format("the shape of {}, {}", other_name, shape_text(other)),
               shape_text(tensor));
}

void expect_dtype(const io::HostTensor& tensor, const std::string& name, const io::HostTensor& q,
                  const std::string& q_name) {
  core::expect(tensor.dtype == q.dtype, name,
               fmt::format("dtype {} as {}", dtype_name(q.dtype), q_name),
               std::string(dtype_name(tensor.dtype)));
}

void fill_problem(Input& input, const MaskOptions& mask) {
  attention::AttentionProblem& problem = input.problem;
  problem.batch = static_cast<std::int64_t>(input.cu_seqlens_q.size()) - 1;
  problem.total_q = input.q.shape[0];
  problem.num_heads = input.q.shape[1];
  problem.head_dim = input.q.shape[2];
  problem.total_k = input.k.shape[0];
  problem.num_heads_kv = input.k.shape[1];
  problem.cu_seqlens_q = input.cu_seqlens_q;
  problem.cu_seqlens_k = input.cu_seqlens_k;
  problem.mask = mask.mask;
  problem.softmax_scale = mask.softmax_scale;
  attention::validate(problem);
}

Matrix<float> gather(const io::HostTensor& tensor, std::int64_t head, std::int64_t first_row,
                     std::int64_t rows) {
  const std::int64_t heads = tensor.shape[1];
  const std::int64_t head_dim = tensor.shape[2];
  Matrix<float> matrix(rows, head_dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t start = ((first_row + i) * heads + head) * head_dim;
    for (std::int64_t d = 0; d < head_dim; ++d) matrix(i, d) = element(tensor, start + d);
  }
  return matrix;
}

/// Rows of the dO of one head: its own stream, so that it does not depend on what is sampled.
Matrix<float> draw_dout(const Input& input, const Unit& unit, std::int64_t seqlen_q) {
  const auto stream =
      static_cast<std::uint64_t>(unit.index.sequence * input.problem.num_heads + unit.index.head);
  const reference::HeadInputs drawn =
      reference::make_dataset("normal", {.seqlen_q = seqlen_q,
                                         .seqlen_k = 0,
                                         .head_dim = input.problem.head_dim,
                                         .seed = input.seed + 0x9E3779B97F4A7C15U * (stream + 1)});
  Matrix<float> rows(unit.rows, input.problem.head_dim);
  for (std::int64_t i = 0; i < unit.rows; ++i) {
    const auto source = drawn.dout.row(unit.first_row + i);
    std::copy(source.begin(), source.end(), rows.row(i).begin());
  }
  return rows;
}

/// What is refused bears the name of its option: --synthetic, --seqlen-k.
reference::HeadInputs draw_dataset(const SyntheticOptions& options, std::uint64_t seed) {
  try {
    return reference::make_dataset(options.name, {.seqlen_q = options.seqlen_q,
                                                  .seqlen_k = options.seqlen_k,
                                                  .head_dim = options.head_dim,
                                                  .seed = seed});
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::size_t end = text.find(':');
    std::string name = text.substr(0, end);
    std::ranges::replace(name, '_', '-');
    if (name == "dataset") name = "synthetic";
    throw Error(error.kind(), name + text.substr(end));
  }
}

io::HostTensor to_tensor(const Matrix<float>& matrix) {
  return io::from_f32(matrix.data, DType::kF32,
                      std::vector<std::int64_t>{matrix.rows, 1, matrix.cols});
}

}  // namespace

Input load_file(const std::string& path, const TensorNames& names, const MaskOptions& mask,
                std::uint64_t seed) {
  const io::SafetensorsReader reader = io::SafetensorsReader::open(path);
  Input input;
  input.source = path;
  input.seed = seed;
  input.q = read_float(reader, names.q);
  input.k = read_float(reader, names.k);
  input.v = read_float(reader, names.v);
  if (reader.find(names.dout) != nullptr || names.dout != TensorNames{}.dout) {
    input.dout = read_float(reader, names.dout);
    expect_dtype(*input.dout, names.dout, input.q, names.q);
    expect_like(*input.dout, names.dout, input.q, names.q);
    const std::int64_t elements = input.dout->view().num_elements();
    std::int64_t zeros = 0;
    while (zeros < elements && element(*input.dout, zeros) == 0) ++zeros;
    input.dout_is_zero = zeros == elements;
  }
  expect_dtype(input.k, names.k, input.q, names.q);
  expect_dtype(input.v, names.v, input.q, names.q);
  const std::size_t rank = input.q.shape.size();
  core::expect(input.k.shape.size() == rank, names.k,
               fmt::format("{} dimensions as {}", rank, names.q), shape_text(input.k));
  expect_like(input.v, names.v, input.k, names.k);
  core::expect(input.k.shape[rank - 1] == input.q.shape[rank - 1], names.k,
               fmt::format("head_dim {} as {}", input.q.shape[rank - 1], names.q),
               shape_text(input.k));
  core::expect(rank == 3 || input.k.shape[0] == input.q.shape[0], names.k,
               fmt::format("a batch of {} as {}", input.q.shape[0], names.q), shape_text(input.k));
  input.cu_seqlens_q = offsets_of(reader, input.q, names.q, names.cu_seqlens_q);
  input.cu_seqlens_k = offsets_of(reader, input.k, names.k, names.cu_seqlens_k);
  input.jagged = rank == 3;
  pack(input.q);
  pack(input.k);
  pack(input.v);
  if (input.dout) pack(*input.dout);
  fill_problem(input, mask);
  expect_finite(input.q, names.q, input.cu_seqlens_q.back());
  expect_finite(input.k, names.k, input.cu_seqlens_k.back());
  expect_finite(input.v, names.v, input.cu_seqlens_k.back());
  if (input.dout) expect_finite(*input.dout, names.dout, input.cu_seqlens_q.back());
  return input;
}

Input make_synthetic(const SyntheticOptions& options, const MaskOptions& mask, std::uint64_t seed) {
  const reference::HeadInputs head = draw_dataset(options, seed);
  Input input;
  input.source = fmt::format("synthetic '{}'", options.name);
  input.seed = seed;
  input.q = to_tensor(head.q);
  input.k = to_tensor(head.k);
  input.v = to_tensor(head.v);
  input.dout = to_tensor(head.dout);
  input.cu_seqlens_q = uniform_offsets(1, head.q.rows, "seqlen_q");
  input.cu_seqlens_k = uniform_offsets(1, head.k.rows, "seqlen_k");
  MaskOptions with_scale = mask;
  if (!with_scale.softmax_scale) with_scale.softmax_scale = head.softmax_scale;
  fill_problem(input, with_scale);
  return input;
}

reference::HeadInputs gather_unit(const Input& input, const Unit& unit) {
  const std::int64_t q_begin = input.cu_seqlens_q[unit.index.sequence];
  const std::int64_t k_begin = input.cu_seqlens_k[unit.index.sequence];
  const std::int64_t head_kv = unit.index.head / input.problem.heads_per_kv();
  reference::HeadInputs head;
  head.q = gather(input.q, unit.index.head, q_begin + unit.first_row, unit.rows);
  head.k = gather(input.k, head_kv, k_begin, unit.seqlen_k);
  head.v = gather(input.v, head_kv, k_begin, unit.seqlen_k);
  head.dout = input.dout
                  ? gather(*input.dout, unit.index.head, q_begin + unit.first_row, unit.rows)
                  : draw_dout(input, unit, input.cu_seqlens_q[unit.index.sequence + 1] - q_begin);
  head.mask = input.problem.mask;
  head.softmax_scale = input.problem.scale();
  return head;
}

}  // namespace mxfa::cli::sqnr
