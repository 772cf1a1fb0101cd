#include "dispatch/quantize_groups.h"

#include <algorithm>

#include "core/parallel.h"
#include "mx/convert.h"

namespace mxfa::dispatch {
namespace {

/// One row of any float dtype to FP32.
void load_row(const TensorView& tensor, std::int64_t offset, std::int64_t stride, float* out,
              std::int64_t count) {
  if (tensor.dtype == DType::kF32) {
    const float* in = static_cast<const float*>(tensor.data) + offset;
    for (std::int64_t i = 0; i < count; ++i) out[i] = in[i * stride];
    return;
  }
  const std::uint16_t* in = static_cast<const std::uint16_t*>(tensor.data) + offset;
  const auto decode_row = tensor.dtype == DType::kF16 ? mx::decode_f16_row : mx::decode_bf16_row;
  if (stride == 1) return decode_row(in, out, count);
  for (std::int64_t i = 0; i < count; ++i) decode_row(in + i * stride, out + i, 1);
}

/// One row of FP32 to any float dtype; `halves` is scratch of `count` elements.
void store_row(const float* values, const TensorView& tensor, std::int64_t offset,
               std::int64_t stride, std::vector<std::uint16_t>& halves) {
  const auto count = static_cast<std::int64_t>(halves.size());
  if (tensor.dtype == DType::kF32) {
    float* out = static_cast<float*>(tensor.data) + offset;
    for (std::int64_t i = 0; i < count; ++i) out[i * stride] = values[i];
    return;
  }
  const auto encode_row = tensor.dtype == DType::kF16 ? mx::encode_f16_row : mx::encode_bf16_row;
  encode_row(values, halves.data(), count);
  std::uint16_t* out = static_cast<std::uint16_t*>(tensor.data) + offset;
  for (std::int64_t i = 0; i < count; ++i) out[i * stride] = halves[i];
}

std::uint8_t* bytes_of(const TensorView& tensor) { return static_cast<std::uint8_t*>(tensor.data); }

template <class Byte>
struct CodeRow {
  Byte* data = nullptr;
  std::int64_t stride = 1;
};
void copy_codes(CodeRow<const std::uint8_t> in, CodeRow<std::uint8_t> out, std::int64_t count) {
  if (in.stride == 1 && out.stride == 1) {
    std::copy(in.data, in.data + count, out.data);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) out.data[i * out.stride] = in.data[i * in.stride];
}

/// The compact scales of one group, [scale rows, scale cols] without gaps.
class GroupScales {
 public:
  GroupScales(const Plan& plan, const mx::CompactScales<std::uint8_t>& compact)
      : plan_(plan),
        compact_(compact),
        cols_(mx::scale_cols(compact.shape, plan.dim)),
        bytes_(static_cast<std::size_t>(cols_ * kScaleBlock / mx::block_rows(compact.shape))) {}

  std::uint8_t* data() { return bytes_.data(); }
  void load(const Group& group) {
    visit(group, [](std::uint8_t& ours, std::uint8_t& theirs) { ours = theirs; });
  }
  void store(const Group& group) {
    visit(group, [](std::uint8_t& ours, std::uint8_t& theirs) { theirs = ours; });
  }

 private:
  template <class Move>
  void visit(const Group& group, Move move) {
    const std::int64_t rows = mx::scale_rows(compact_.shape, group.rows);
    const std::int64_t first = plan_.offsets.scale_row(compact_.shape, group.sequence, group.row);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::uint8_t* theirs =
          compact_.data + (first + row) * compact_.row_stride + group.head * compact_.head_stride;
      for (std::int64_t col = 0; col < cols_; ++col) {
        move(bytes_[row * cols_ + col], theirs[col * compact_.col_stride]);
      }
    }
  }

  const Plan& plan_;
  mx::CompactScales<std::uint8_t> compact_;
  std::int64_t cols_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

void quantize_groups(const Plan& plan, const TensorView& input, const TensorView& payload,
                     const mx::CompactScales<std::uint8_t>& compact) {
  const Packed in = as_packed(input);
  const Packed out = as_packed(payload);
  const bool direct_in = input.dtype == DType::kF32 && in.dim_stride == 1;
  const bool direct_out = out.dim_stride == 1;
  const GroupChunks chunks(plan);
  core::parallel_for(chunks.count(), [&](std::int64_t chunk) {
    mx::RowGroupQuantizer quantizer(plan.spec, plan.dim);
    GroupScales scales(plan, compact);
    std::vector<float> values(direct_in ? 0 : kScaleBlock * plan.dim);
    std::vector<std::uint8_t> codes(direct_out ? 0 : kScaleBlock * plan.dim);
    chunks.for_each(chunk, [&](const Group& group) {
      const std::int64_t from = in.offset(group.token, group.head);
      for (int row = 0; row < group.rows && !direct_in; ++row) {
        load_row(input, from + row * in.token_stride, in.dim_stride, &values[row * plan.dim],
                 plan.dim);
      }
      const float* source =
          direct_in ? static_cast<const float*>(input.data) + from : values.data();
      const std::int64_t stride = direct_in ? in.token_stride : plan.dim;
      std::uint8_t* to = bytes_of(payload) + out.offset(group.token, group.head);
      quantizer.run(source, stride, group.rows, direct_out ? to : codes.data(),
                    direct_out ? out.token_stride : plan.dim, scales.data());
      for (int row = 0; row < group.rows && !direct_out; ++row) {
        copy_codes({&codes[row * plan.dim], 1}, {to + row * out.token_stride, out.dim_stride},
                   plan.dim);
      }
      scales.store(group);
    });
  });
}

void dequantize_groups(const Plan& plan, const TensorView& payload,
                       const mx::CompactScales<std::uint8_t>& compact, const TensorView& output) {
  const Packed in = as_packed(payload);
  const Packed out = as_packed(output);
  const std::int64_t scale_cols = mx::scale_cols(plan.spec.block_shape, plan.dim);
  const GroupChunks chunks(plan);
  core::parallel_for(chunks.count(), [&](std::int64_t chunk) {
    GroupScales scales(plan, compact);
    std::vector<float> factors(plan.dim);
    std::vector<float> values(plan.dim);
    std::vector<std::uint8_t> codes(plan.dim);
    std::vector<std::uint16_t> halves(plan.dim);
    chunks.for_each(chunk, [&](const Group& group) {
      scales.load(group);
      const int height = mx::block_rows(plan.spec.block_shape);
      for (int row = 0; row < group.rows; ++row) {
        if (row % height == 0) {
          mx::expand_scales(plan.spec.block_shape, scales.data() + row / height * scale_cols,
                            factors.data(), plan.dim);
        }
        const std::uint8_t* from = bytes_of(payload) + in.offset(group.token + row, group.head);
        copy_codes({from, in.dim_stride}, {codes.data(), 1}, plan.dim);
        mx::decode_row(plan.spec.format, codes.data(), factors.data(), values.data(), plan.dim);
        store_row(values.data(), output, out.offset(group.token + row, group.head), out.dim_stride,
                  halves);
      }
    });
  });
}

mx::RealignReport realign_groups(const Plan& plan, const TensorView& payload,
                                 const mx::CompactScales<std::uint8_t>& compact,
                                 const TensorView& payload_out,
                                 const mx::CompactScales<std::uint8_t>& uniform) {
  const Packed in = as_packed(payload);
  const Packed out = as_packed(payload_out);
  const GroupChunks chunks(plan);
  std::vector<mx::RealignReport> reports(static_cast<std::size_t>(chunks.count()));
  core::parallel_for(chunks.count(), [&](std::int64_t chunk) {
    mx::GroupRealigner realigner(plan.spec.block_shape, plan.spec.format, plan.dim);
    GroupScales scales(plan, compact);
    GroupScales scale_out(plan, uniform);
    std::vector<std::uint8_t> codes(kScaleBlock * plan.dim);
    chunks.for_each(chunk, [&](const Group& group) {
      scales.load(group);
      const std::uint8_t* from = bytes_of(payload) + in.offset(group.token, group.head);
      for (int row = 0; row < group.rows; ++row) {
        copy_codes({from + row * in.token_stride, in.dim_stride}, {&codes[row * plan.dim], 1},
                   plan.dim);
      }
      *scale_out.data() =
          realigner.run(codes.data(), plan.dim, group.rows, scales.data(), codes.data(), plan.dim);
      scale_out.store(group);
      std::uint8_t* to = bytes_of(payload_out) + out.offset(group.token, group.head);
      for (int row = 0; row < group.rows; ++row) {
        copy_codes({&codes[row * plan.dim], 1}, {to + row * out.token_stride, out.dim_stride},
                   plan.dim);
      }
    });
    reports[chunk] = realigner.report();
  });
  mx::RealignReport sum;
  for (const mx::RealignReport& report : reports) sum.add(report);
  return sum;
}

void clear_tokens(const Plan& plan, const TensorView& tensor) {
  const Packed packed = as_packed(tensor);
  const std::size_t size = dtype_size(tensor.dtype);
  for (std::int64_t token = plan.offsets.tokens.back(); token < plan.tokens; ++token) {
    for (std::int64_t head = 0; head < plan.heads; ++head) {
      for (std::int64_t i = 0; i < plan.dim; ++i) {
        const std::int64_t element = packed.offset(token, head) + i * packed.dim_stride;
        std::uint8_t* out = bytes_of(tensor) + element * static_cast<std::int64_t>(size);
        std::fill(out, out + size, std::uint8_t{0});
      }
    }
  }
}

}  // namespace mxfa::dispatch
