#include "dispatch/gpu/known_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <thread>

#include "dispatch/gpu/captured_graph.h"
#include "dispatch/gpu/device_call.h"
#include "dispatch/gpu/device_state.h"
#include "mxfa/error.h"
#include "support/compare.h"

namespace mxfa::testing {
namespace {

using attention::ForwardArgs;
using attention::Options;
using dispatch::CallKey;

CallKey<ForwardArgs> key_of(DeviceCall& call) {
  return {call.args(), call.options(), call.workspace().bytes()};
}
bool is_known(DeviceCall& call) { return device().state().forwards.find(key_of(call)) != nullptr; }
void attend(DeviceCall& call) {
  attention::forward_prepared(call.args(), call.options(), call.workspace().bytes());
}
void expect_same(const CallResults& got, const CallResults& want, const char* label) {
  EXPECT_TRUE(bitwise_equal(got.o, want.o, {.label = label}));
  EXPECT_TRUE(bitwise_equal(got.lse, want.lse, {.label = label}));
  EXPECT_TRUE(bitwise_equal(got.row_max, want.row_max, {.label = label}));
}
/// Until it is known.
void attend_twice(DeviceCall& call) {
  attend(call);
  attend(call);
}
void move(TensorView& view) { view.data = static_cast<std::byte*>(view.data) + 256; }

TEST(GpuKnownCalls, OnlyCallsOnPreparedOperandsAreKept) {
  for (const CallCase& c : {jagged(), dense(), broadcast()}) {
    DeviceCall call(c);
    // No other test's: a GPU gives this call memory that theirs had, and known calls outlive it.
    call.options().softmax_scale = 0.0371f;
    const CallResults want = call.run();
    EXPECT_FALSE(is_known(call));
    for (int i = 0; i < 3; ++i) {
      call.poison_outputs();
      attend(call);
      expect_same(call.results(), want, "prepared");
      EXPECT_EQ(is_known(call), i > 0);
    }
  }
}

TEST(GpuKnownCalls, AnyOtherMemberIsAnotherCall) {
  DeviceCall call(jagged());
  call.run();
  attend_twice(call);
  ASSERT_TRUE(is_known(call));
  using Change = std::function<void(ForwardArgs&, Options&, std::span<std::byte>&)>;
  const Change changes[] = {
      [](auto& args, auto&, auto&) { move(args.q.values); },
      [](auto& args, auto&, auto&) { move(args.k.values); },
      [](auto& args, auto&, auto&) { move(args.v.values); },
      [](auto& args, auto&, auto&) { move(args.v.scales); },
      [](auto& args, auto&, auto&) { move(args.cu_seqlens_q); },
      [](auto& args, auto&, auto&) { move(args.cu_seqlens_k); },
      [](auto& args, auto&, auto&) { move(args.o.values); },
      [](auto& args, auto&, auto&) { move(args.lse); },
      [](auto& args, auto&, auto&) { move(args.row_max); },
      [](auto& args, auto&, auto&) { args.row_max = {}; },
      [](auto& args, auto&, auto&) { args.q.values.shape[0] -= 1; },
      [](auto& args, auto&, auto&) { args.k.values.strides[0] += 8; },
      [](auto& args, auto&, auto&) { args.v.values.dtype = DType::kF32; },
      [](auto& args, auto&, auto&) { args.o.values.strides[1] += 8; },
      [](auto& args, auto&, auto&) { args.o.values.rank += 1; },
      [](auto& args, auto&, auto&) { args.cu_seqlens_q.dtype = DType::kI64; },
      [](auto&, auto& options, auto&) { options.device = nullptr; },
      [](auto&, auto& options, auto&) { options.stream = &options; },
      [](auto&, auto& options, auto&) { options.causal = !options.causal; },
      [](auto&, auto& options, auto&) { options.window_left = 3; },
      [](auto&, auto& options, auto&) { options.softmax_scale = 0.25; },
      [](auto&, auto& options, auto&) { options.leak_free = true; },
      [](auto&, auto& options, auto&) { options.half_scores = true; },
      [](auto&, auto& options, auto&) { options.exact = true; },
      [](auto&, auto& options, auto&) { options.output_shape = BlockShape::k1x32; },
      [](auto&, auto&, auto& workspace) { workspace = workspace.subspan(256); },
      [](auto&, auto&, auto& workspace) { workspace = workspace.first(workspace.size() - 1); },
  };
  for (const Change& change : changes) {
    ForwardArgs args = call.args();
    Options options = call.options();
    std::span<std::byte> workspace = call.workspace().bytes();
    change(args, options, workspace);
    EXPECT_EQ(device().state().forwards.find({args, options, workspace}), nullptr)
        << "change " << &change - changes;
  }
}

TEST(GpuKnownCalls, OtherMemoryIsReadAndWritten) {
  DeviceCall call(jagged()), other(jagged());
  const CallResults want = call.run();
  attend_twice(call);
  // The same call but for where O goes, and then but for the scale.
  const TensorView own = call.args().o.values;
  call.args().o.values.data = other.args().o.values.data;
  call.poison_outputs();
  other.poison_outputs();
  attend(call);
  EXPECT_TRUE(bitwise_equal(other.results().o, want.o, {.label = "o elsewhere"}));
  EXPECT_FALSE(bitwise_equal(call.results().o, want.o, {}));
  call.args().o.values = own;
  call.options().softmax_scale = 0.5;
  attend(call);
  EXPECT_FALSE(bitwise_equal(call.results().lse, want.lse, {}));
}

TEST(GpuKnownCalls, FreedMemoryIsRefused) {
  DeviceCall call(dense());
  call.run();
  const std::span<std::byte> workspace = call.workspace().bytes();
  {
    const DeviceArray<float> lse(call.results().lse.size());
    call.args().lse.data = lse.data();
    attend_twice(call);
    ASSERT_TRUE(is_known(call));
    device().synchronize();
  }
  try {
    attention::forward_prepared(call.args(), call.options(), workspace);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(std::string_view(error.what())
                    .starts_with("lse: expected memory of device 0, got an address that is no"))
        << error.what();
  }
}

TEST(GpuKnownCalls, GraphsHoldThem) {
  DeviceCall call(jagged());
  const driver::Stream stream(device().state().device);
  call.options().stream = stream.handle();
  const CallResults want = call.run();
  attend_twice(call);
  ASSERT_TRUE(is_known(call));
  const CapturedGraph graph(stream, [&] { attend(call); });
  call.poison_outputs();
  graph.replay();
  expect_same(call.results(), want, "replayed");
}

TEST(GpuKnownCalls, ThreadsHaveTheirOwn) {
  constexpr int kThreads = 4, kCalls = 4;
  std::vector<std::unique_ptr<DeviceCall>> calls;
  std::vector<std::unique_ptr<driver::Stream>> streams;
  std::vector<CallResults> want;
  std::set<std::size_t> places;
  for (int i = 0; i < kThreads; ++i) {
    calls.push_back(std::make_unique<DeviceCall>(i % 2 == 0 ? jagged() : dense()));
    streams.push_back(std::make_unique<driver::Stream>(device().state().device));
    calls[i]->options().stream = streams[i]->handle();
    // Addresses differ from run to run, and two calls of one place would drop each other.
    double scale = 0.1 * (i + 1);
    do {
      calls[i]->options().softmax_scale = scale;
      scale += 0.001;
    } while (!places.insert(dispatch::KnownCalls<ForwardArgs>::place_of(key_of(*calls[i]))).second);
    want.push_back(calls[i]->run());
    calls[i]->poison_outputs();
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < kCalls; ++n) attend(*calls[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(is_known(*calls[i]));
    expect_same(calls[i]->results(), want[i], "a thread's");
  }
}

TEST(GpuKnownCalls, CallsThatCameOnceAreNotKept) {
  dispatch::KnownCalls<ForwardArgs> known;
  ForwardArgs args;
  const Options options;
  const auto comes_again = [&](std::int64_t rows) {
    args.q.values.shape[0] = rows;
    return known.comes_again({args, options, {}});
  };
  EXPECT_FALSE(comes_again(1));
  EXPECT_TRUE(comes_again(1));
  EXPECT_FALSE(comes_again(2));
  EXPECT_TRUE(comes_again(2));
}

// Each finds its own call or none while all write to the same places.
TEST(GpuKnownCalls, ThreadsKeepAndFindAtOnce) {
  dispatch::KnownCalls<ForwardArgs> known;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 2000; ++n) {
        ForwardArgs args;
        args.q.values.rank = i;  // of one place: addresses are the same
        const Options options;
        const CallKey<ForwardArgs> key{args, options, {}};
        known.keep(key, {});
        const auto found = known.find(key);
        if (found != nullptr && found->args.q.values.rank != i) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(GpuKnownCalls, DevicesHaveTheirOwn) {
  DeviceCall call(jagged());
  const CallResults want = call.run();
  attend_twice(call);
  DeviceOptions options;
  const driver::Device& first = device().state().device;
  if (first.driver().kind() == driver::DriverKind::kEmulator)
    options.emulated_arch = device().arch();
  const Device second(options);
  call.options().device = &second;
  EXPECT_EQ(second.state().forwards.find({call.args(), call.options(), call.workspace().bytes()}),
            nullptr);
  for (int i = 0; i < 3; ++i) {
    call.poison_outputs();
    attend(call);
    second.synchronize();
    expect_same(call.results(), want, "another Device");
  }
}

}  // namespace
}  // namespace mxfa::testing
