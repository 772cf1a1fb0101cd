#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "io/host_tensor.h"
#include "reference/attention.h"
#include "reference/batch.h"

/// What `mxfa sqnr` measures on: the tensors of one attention call, from a file or drawn.
namespace mxfa::cli::sqnr {

/// Names of the tensors in the file. cu_seqlens may also lie under "cu_seqlens", for both sides.
struct TensorNames {
  std::string q = "q";
  std::string k = "k";
  std::string v = "v";
  std::string dout = "dout";
  std::string cu_seqlens_q = "cu_seqlens_q";
  std::string cu_seqlens_k = "cu_seqlens_k";
};

struct MaskOptions {
  attention::Mask mask;
  std::optional<double> softmax_scale;
};

struct SyntheticOptions {
  std::string name;
  std::int64_t seqlen_q = 512;
  std::int64_t seqlen_k = 1024;
  std::int64_t head_dim = 128;
};

/// Tensors keep the dtype of the file; heads are converted one at a time.
struct Input {
  std::string source;  ///< for people: the file, or the name of the data set
  bool jagged = false;
  io::HostTensor q;                    ///< [total_q, num_heads, head_dim]
  io::HostTensor k;                    ///< [total_k, num_heads_kv, head_dim]
  io::HostTensor v;                    ///< likewise
  std::optional<io::HostTensor> dout;  ///< as q; empty: drawn from N(0, 1) by `seed`
  bool dout_is_zero = false;           ///< the file's: then so are all gradients
  std::uint64_t seed = 0;
  std::vector<std::int32_t> cu_seqlens_q;
  std::vector<std::int32_t> cu_seqlens_k;
  /// Its offsets point into the vectors above, which stay where they are when an Input is moved.
  attention::AttentionProblem problem;

  Input() = default;
  Input(Input&&) = default;
  Input& operator=(Input&&) = default;
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
};

/// A part of one (sequence, head): query rows [first_row, first_row + rows) against all its keys.
struct Unit {
  reference::HeadIndex index;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t pairs() const { return rows * seqlen_k; }
};

/// Reads and checks a file. Throws Error naming the tensor and the fault: missing, wrong dtype,
/// shapes that do not fit, offsets that leave the data, NaN or infinite values (with their number
/// and the first place), unsupported head_dim.
Input load_file(const std::string& path, const TensorNames& names, const MaskOptions& mask,
                std::uint64_t seed);

Input make_synthetic(const SyntheticOptions& options, const MaskOptions& mask, std::uint64_t seed);

/// The unit's tensors in FP32, with the mask that its rows have in the whole sequence.
reference::HeadInputs gather_unit(const Input& input, const Unit& unit);

}  // namespace mxfa::cli::sqnr
