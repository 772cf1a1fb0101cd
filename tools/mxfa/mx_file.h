#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/host_tensor.h"
#include "io/safetensors.h"
#include "mxfa/quantize.h"

/// How quantized tensors lie in a safetensors file: the payload under the tensor's own name, its
/// scales as `<name>.scale`, and under the metadata key `mxfa.<name>` a JSON object that says
/// everything dequantization needs:
///   {"block":"32x32","rule":"up","format":"e4m3","layout":"compact","axis":"head_dim",
///    "dtype":"BF16","cu_seqlens":"cu"}
/// A tensor of four dimensions [batch, seqlen, num_heads, head_dim] is quantized as `batch`
/// sequences, one of two or three with the offsets named by "cu_seqlens", if any.
namespace mxfa::cli {

inline constexpr std::string_view kScaleSuffix = ".scale";
inline constexpr std::string_view kMetadataPrefix = "mxfa.";

struct MxDescription {
  BlockShape block_shape = BlockShape::k32x32;
  ScaleRule rule = ScaleRule::kRoundUp;
  DType format = DType::kE4M3;
  ScaleLayout layout = ScaleLayout::kRowMajor;
  ScaleAxis axis = ScaleAxis::kHeadDim;
  DType dtype = DType::kBF16;  ///< before quantization
  std::string cu_seqlens;      ///< name of the offsets' tensor; empty for none
};

/// The names by which options and metadata call them. The parsers throw Error that lists the known
/// ones.
BlockShape parse_block_shape(const std::string& text);
ScaleRule parse_scale_rule(const std::string& text);
DType parse_format(const std::string& text);
ScaleLayout parse_scale_layout(const std::string& text);
ScaleAxis parse_scale_axis(const std::string& text);

std::string to_metadata(const MxDescription& description);
/// Throws Error(kIo) naming `source` and the tensor where the text is malformed.
MxDescription parse_metadata(const std::string& text, const std::string& source,
                             const std::string& tensor);

/// A tensor as quantize() takes it: at most three dimensions, with the offsets that fit it.
struct PackedForm {
  std::vector<std::int64_t> shape;
  std::optional<io::HostTensor> offsets;
};

/// Folds a batch dimension; `offsets` is the file's tensor named by the description, if any.
/// Throws Error naming `name` where the rank is not 2, 3 or 4, or offsets come with rank 4.
PackedForm packed_form(const std::string& name, const std::vector<std::int64_t>& shape,
                       const std::optional<io::HostTensor>& offsets);

/// The library's options for a description; points into `form`.
QuantizeOptions quantize_options(const MxDescription& description, const PackedForm& form);

}  // namespace mxfa::cli
