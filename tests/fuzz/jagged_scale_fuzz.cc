/// Arbitrary cu_seqlens must be refused exactly where they are wrong; good ones must carry scales
/// to the tiled layout and back without a lost byte, a NaN in the padding or a stray write (buffers
/// have exactly the size that the library asked for).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "mxfa/error.h"
#include "mxfa/quantize.h"

namespace {

using mxfa::BlockShape;
using mxfa::DType;

class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t count = std::min(sizeof(T), size_);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }
  std::int64_t below(std::int64_t limit) { return take<std::uint8_t>() % limit; }
  bool empty() const { return size_ == 0; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

struct Input {
  std::int64_t tokens = 0;
  mxfa::QuantizeOptions options;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> cu_seqlens;
  std::vector<std::int32_t> narrow;  ///< the same where they fit
  bool is_narrow = false;
};

Input read_input(Reader& reader) {
  constexpr BlockShape kShapes[] = {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                    BlockShape::k32xD, BlockShape::k1xD};
  Input input;
  input.options.block_shape = kShapes[reader.below(5)];
  input.options.scale_axis =
      reader.below(2) == 0 ? mxfa::ScaleAxis::kHeadDim : mxfa::ScaleAxis::kTokens;
  input.is_narrow = reader.below(2) == 0;
  input.tokens = reader.take<std::uint16_t>() % 600;
  input.shape = {input.tokens, 1 + reader.below(160)};
  if (reader.below(2) == 0) input.shape.insert(input.shape.begin() + 1, reader.below(3));
  const bool limited = reader.below(8) == 0;
  if (limited) input.options.max_seqlen = reader.take<std::uint16_t>() % 300;
  const bool raw = reader.below(4) == 0;  // else lengths, mostly valid
  std::int64_t last = 0;
  while (!reader.empty() && input.cu_seqlens.size() < 24) {
    if (raw) {
      last = input.is_narrow ? reader.take<std::int32_t>() : reader.take<std::int64_t>();
    } else if (!input.cu_seqlens.empty()) {
      last += reader.take<std::uint8_t>() % 3 == 0 ? reader.below(140) : reader.below(20);
    } else {
      last = reader.below(16) == 15 ? 1 : 0;
    }
    input.cu_seqlens.push_back(last);
    input.narrow.push_back(static_cast<std::int32_t>(last));
  }
  input.options.cu_seqlens =
      input.is_narrow ? mxfa::make_tensor(input.narrow.data(), DType::kI32,
                                          {static_cast<std::int64_t>(input.narrow.size())})
                      : mxfa::make_tensor(input.cu_seqlens.data(), DType::kI64,
                                          {static_cast<std::int64_t>(input.cu_seqlens.size())});
  return input;
}

bool is_valid(const Input& input) {
  const std::vector<std::int64_t>& offsets = input.cu_seqlens;
  if (offsets.empty() || offsets[0] != 0 || offsets.back() > input.tokens) return false;
  for (std::size_t s = 1; s < offsets.size(); ++s) {
    if (offsets[s] < offsets[s - 1]) return false;
    const bool too_long = offsets[s] - offsets[s - 1] > input.options.max_seqlen;
    if (input.options.max_seqlen >= 0 && too_long) return false;
  }
  return true;
}

bool axis_fits(const mxfa::QuantizeOptions& options) {
  const bool one_token =
      options.block_shape == BlockShape::k1x32 || options.block_shape == BlockShape::k1xD;
  if (options.scale_axis == mxfa::ScaleAxis::kTokens) return !one_token;
  return options.block_shape != BlockShape::k32x1;
}

void require(bool ok) {
  if (!ok) std::abort();
}

std::size_t size_of(const std::vector<std::int64_t>& shape) {
  std::size_t size = 1;
  for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
  return size;
}

void round_trip(const Input& input) {
  mxfa::QuantizeOptions tiled_options = input.options;
  tiled_options.layout = mxfa::ScaleLayout::kTiled128x4;
  const auto compact_shape = mxfa::scale_shape(input.shape, input.options);
  const auto tiled_shape = mxfa::scale_shape(input.shape, tiled_options);
  std::vector<std::uint8_t> compact(size_of(compact_shape));
  for (std::size_t i = 0; i < compact.size(); ++i) {
    compact[i] = static_cast<std::uint8_t>(1 + i * 31 % 254);
  }
  std::vector<std::uint8_t> tiled(size_of(tiled_shape), 0xFF);
  std::vector<std::uint8_t> back(compact.size(), 0xFF);
  const auto view = [](std::vector<std::uint8_t>& bytes, const std::vector<std::int64_t>& shape) {
    return mxfa::make_tensor(bytes.data(), DType::kE8M0, shape);
  };
  mxfa::tile_scales(input.shape, view(compact, compact_shape), view(tiled, tiled_shape),
                    input.options);
  require(std::count(tiled.begin(), tiled.end(), 0xFF) == 0);
  mxfa::untile_scales(input.shape, view(tiled, tiled_shape), view(back, compact_shape),
                      input.options);
  // Scales of single tokens behind the last sequence are slack: they come back as 0.
  const bool one_token = input.options.block_shape == BlockShape::k1x32 ||
                         input.options.block_shape == BlockShape::k1xD;
  const std::int64_t rows = one_token ? input.cu_seqlens.back() : compact_shape[0];
  const std::size_t used = compact_shape[0] == 0
                               ? 0
                               : compact.size() / compact_shape[0] * static_cast<std::size_t>(rows);
  require(std::equal(back.begin(), back.begin() + used, compact.begin()));
  require(std::count(back.begin() + used, back.end(), 0) ==
          static_cast<std::ptrdiff_t>(back.size() - used));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Reader reader(data, size);
  const Input input = read_input(reader);
  try {
    round_trip(input);
    require(is_valid(input) && axis_fits(input.options));
  } catch (const mxfa::Error&) {
    require(!is_valid(input) || !axis_fits(input.options));
  }
  return 0;
}
