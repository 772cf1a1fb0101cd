#include <gtest/gtest.h>

#include "dispatch/gpu/backward_call.h"
#include "dispatch/gpu/device_state.h"
#include "support/compare.h"

/// Strides beyond 32 bits: 9 GB a tensor, so on a GPU only.
namespace mxfa::testing {
namespace {

/// Rows of a packed or dense tensor, each 2^31 elements and a few behind the last.
class FarRows {
 public:
  FarRows(const Tensor& near, const std::vector<std::uint16_t>& values) : FarRows(near) {
    const driver::CurrentDevice current(own());
    for (std::int64_t row = 0; row < rows_; ++row) {
      own().driver().check(own().calls().cuMemcpyHtoDAsync(
                               address(row), values.data() + row * width_, bytes(), nullptr),
                           "cuMemcpyHtoDAsync");
      own().driver().check(own().calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    }
  }
  explicit FarRows(const Tensor& near)
      : rows_(near.values.shape[0] * near.values.shape[1]),
        width_(near.values.shape[2] * near.values.shape[3]),
        memory_(device(), static_cast<std::size_t>((rows_ - 1) * kStride + width_) * 2) {
    view_ = near.values;
    view_.data = memory_.data();
    view_.strides[1] = kStride;
    view_.strides[0] = view_.shape[1] * kStride;
  }
  Tensor tensor() const { return {view_}; }
  std::vector<std::uint16_t> download() const {
    device().synchronize();
    const driver::CurrentDevice current(own());
    std::vector<std::uint16_t> values(static_cast<std::size_t>(rows_ * width_));
    for (std::int64_t row = 0; row < rows_; ++row) {
      own().driver().check(own().calls().cuMemcpyDtoHAsync(values.data() + row * width_,
                                                           address(row), bytes(), nullptr),
                           "cuMemcpyDtoHAsync");
      own().driver().check(own().calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    }
    return values;
  }

 private:
  static constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;

  static const driver::Device& own() { return device().state().device; }
  CUdeviceptr address(std::int64_t row) const {
    return reinterpret_cast<CUdeviceptr>(memory_.data()) +
           static_cast<CUdeviceptr>(row * kStride) * 2;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(width_) * 2; }

  std::int64_t rows_, width_;
  DeviceMemory memory_;
  TensorView view_;
};

TEST(GpuFar, RowsMoreThan2To31ElementsApartGiveTheSameBits) {
  CallCase c{.batch = 1, .seqlen_q = 3, .seqlen_k = 2, .num_heads = 2, .num_heads_kv = 2};
  c.options.deterministic = true;
  DeviceCall near(c);
  const CallResults want_forward = near.run();
  DeviceBackward near_backward(c);
  const DeviceBackward::Codes want = near_backward.run();

  attention::ForwardArgs args = near.args();
  const FarRows q(args.q, near.values(0)), k(args.k, near.values(1)), v(args.v, near.values(2)),
      o(args.o);
  args.q = q.tensor();
  args.k = k.tensor();
  args.v = v.tensor();
  args.o = o.tensor();
  attention::forward(args, near.options(), near.workspace().bytes());
  EXPECT_TRUE(bitwise_equal(o.download(), want_forward.o, {.label = "o"}));

  attention::BackwardArgs& backward = near_backward.args();
  const FarRows dout(backward.dout, near_backward.dout_values()), dq(backward.dq), dk(backward.dk),
      dv(backward.dv);
  backward.q = q.tensor();
  backward.k = k.tensor();
  backward.v = v.tensor();
  backward.o = o.tensor();
  backward.dout = dout.tensor();
  backward.dq = dq.tensor();
  backward.dk = dk.tensor();
  backward.dv = dv.tensor();
  attention::backward(backward, near_backward.options(), near_backward.workspace().bytes());
  EXPECT_TRUE(bitwise_equal(dq.download(), want.dq, {.label = "dq"}));
  EXPECT_TRUE(bitwise_equal(dk.download(), want.dk, {.label = "dk"}));
  EXPECT_TRUE(bitwise_equal(dv.download(), want.dv, {.label = "dv"}));
}

}  // namespace
}  // namespace mxfa::testing
