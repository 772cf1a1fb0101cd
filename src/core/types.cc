#include "mxfa/types.h"

#include "mxfa/error.h"

namespace mxfa {

std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kE4M3:
    case DType::kE5M2:
    case DType::kE8M0:
    case DType::kU8:
      return 1;
  }
  throw Error(ErrorKind::kInvalidArgument, "dtype: not a member of DType");
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kE4M3:
      return "e4m3";
    case DType::kE5M2:
      return "e5m2";
    case DType::kE8M0:
      return "e8m0";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  throw Error(ErrorKind::kInvalidArgument, "dtype: not a member of DType");
}

std::string_view block_shape_name(BlockShape shape) {
  switch (shape) {
    case BlockShape::k1x32:
      return "1x32";
    case BlockShape::k32x1:
      return "32x1";
    case BlockShape::k32x32:
      return "32x32";
    case BlockShape::k32xD:
      return "32xD";
    case BlockShape::k1xD:
      return "1xD";
  }
  throw Error(ErrorKind::kInvalidArgument, "block shape: not a member of BlockShape");
}

std::string_view scale_axis_name(ScaleAxis axis) {
  switch (axis) {
    case ScaleAxis::kHeadDim:
      return "head_dim";
    case ScaleAxis::kTokens:
      return "tokens";
  }
  throw Error(ErrorKind::kInvalidArgument, "scale axis: not a member of ScaleAxis");
}

}  // namespace mxfa
