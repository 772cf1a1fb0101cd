#include "mxemu/trace.h"

#include <algorithm>
#include <map>

#include "support.h"

namespace mxfa::emu::test {
namespace {

/// A producer warp copies 128 bytes for three others, which wait for it at an mbarrier.
constexpr const char* kPipeline = R"(
.version 9.0
.target sm_90a
.address_size 64
.shared .align 8 .b64 full;
.shared .align 16 .b8 data[128];
.visible .entry pipeline(.param .u64 source, .param .u64 sums)
{
  .reg .b32 r<9>; .reg .b64 d<9>; .reg .pred q<5>;
  mov.u32 r1, %tid.x;
  setp.ne.u32 q1, r1, 96;
  @q1 bra ready;
  mbarrier.init.shared::cta.b64 [full], 1;
ready:
  bar.sync 0;
  shr.u32 r2, r1, 5;
  setp.ne.u32 q2, r2, 3;
  @q2 bra consume;
  @q1 bra done;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 128;
  ld.param.u64 d1, [source];
  mov.u32 r3, data;
  mov.u32 r4, full;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r3], [d1], 128, [r4];
  bra done;
consume:
  mbarrier.try_wait.parity.shared::cta.b64 q3, [full], 0;
  @!q3 bra consume;
  and.b32 r5, r1, 31;
  mov.u32 r3, data;
  mad.lo.u32 r3, r5, 4, r3;
  ld.shared.u32 r6, [r3];
  ld.param.u64 d2, [sums];
  mul.wide.u32 d3, r1, 4;
  add.u64 d2, d2, d3;
  st.global.u32 [d2], r6;
done:
  ret;
}
)";

class Trace : public testing::Test {
 protected:
  LaunchStats run(TraceReport* trace, Policy policy, std::uint64_t seed = 0) {
    const Module module(kPipeline, "pipeline.ptx", memory_);
    LaunchOptions options;
    options.trace = trace;
    options.policy = policy;
    options.seed = seed;
    return module.launch("pipeline", {{3, 1, 1}, {128, 1, 1}, {}, 0},
                         Arguments().add(source_.data()).add(sums_.data()), options);
  }
  std::uint64_t ticks(const TraceReport& report, std::uint32_t warp, TraceGroup group) const {
    std::uint64_t sum = 0;
    for (const TraceSlice& slice : report.slices) {
      if (slice.warp == warp && slice.group == group) sum += slice.end - slice.begin;
    }
    return sum;
  }
  GlobalMemory memory_;
  Buffer<std::uint32_t> source_{memory_, std::vector<std::uint32_t>(32, 7), "source"};
  Buffer<std::uint32_t> sums_{memory_, std::vector<std::uint32_t>(128, 0), "sums"};
};

TEST_F(Trace, ConsumersWaitWhileTheCopyIsUnderWay) {
  TraceReport report;
  run(&report, Policy::kTimed);
  EXPECT_EQ(report.kernel, "pipeline");
  EXPECT_EQ(report.warps, 4u);
  ASSERT_EQ(report.ops.size(), 1u);
  const TraceOp& copy = report.ops[0];
  EXPECT_EQ(copy.what, "bulk load");
  EXPECT_NE(copy.text.find("cp.async.bulk"), std::string::npos) << copy.text;
  EXPECT_GT(copy.end, copy.begin + 100);
  for (std::uint32_t warp = 0; warp < 3; ++warp) {
    EXPECT_GT(ticks(report, warp, TraceGroup::kWait), (copy.end - copy.begin) / 2) << warp;
    const auto last = std::ranges::find_if(report.slices, [&](const TraceSlice& slice) {
      return slice.warp == warp && slice.group == TraceGroup::kMath && slice.end > copy.end;
    });
    EXPECT_NE(last, report.slices.end()) << "warp " << warp << " did nothing after the copy";
  }
  EXPECT_GT(ticks(report, 3, TraceGroup::kCopy), 0u);
  EXPECT_EQ(sums_[0], 7u);
}

TEST_F(Trace, SlicesOfAWarpDoNotOverlap) {
  for (const Policy policy : {Policy::kTimed, Policy::kRandom, Policy::kLatest}) {
    TraceReport report;
    report.max_blocks = 3;
    run(&report, policy, 5);
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> ends;
    std::ranges::sort(report.slices, {}, &TraceSlice::begin);
    for (const TraceSlice& slice : report.slices) {
      std::uint64_t& end = ends[{slice.block, slice.warp}];
      EXPECT_GE(slice.begin, end);
      EXPECT_GT(slice.end, slice.begin);
      end = slice.end;
    }
    EXPECT_EQ(ends.size(), 12u);
    EXPECT_EQ(report.ops.size(), 3u);
  }
}

TEST_F(Trace, TheScheduleIsTheSameWithAndWithout) {
  for (const Policy policy : {Policy::kTimed, Policy::kRandom, Policy::kLifo}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      TraceReport report;
      const LaunchStats with = run(&report, policy, seed);
      const LaunchStats without = run(nullptr, policy, seed);
      EXPECT_EQ(with.warp_instructions, without.warp_instructions) << seed;
    }
  }
}

TEST_F(Trace, RolesAreGuessedByTheCodeOfWarps) {
  TraceReport report;
  run(&report, Policy::kTimed);
  const std::vector<TraceRole> roles = guess_roles(report);
  ASSERT_EQ(roles.size(), 2u);
  EXPECT_EQ(roles[0].last, 2u);
  EXPECT_EQ(roles[1].first, 3u);
  EXPECT_EQ(roles[1].name, "issues copies");
}

TEST_F(Trace, ChromeJson) {
  TraceReport report;
  run(&report, Policy::kTimed);
  report.ops[0].text = "quote \" and \\";
  const std::string json = chrome_json(report);
  EXPECT_TRUE(json.starts_with("{\"traceEvents\": ["));
  EXPECT_NE(json.find(R"("name": "warp 3")"), std::string::npos);
  EXPECT_NE(json.find(R"("ph": "b", "name": "bulk load")"), std::string::npos);
  EXPECT_NE(json.find(R"(quote \" and \\)"), std::string::npos);
}

TEST_F(Trace, SvgHasALaneForEveryWarpAndKindOfWork) {
  TraceReport report;
  run(&report, Policy::kTimed);
  const std::string svg = timeline_svg(report, {{"<loader>", 3, 3}, {"ghosts", 40, 50}});
  for (const char* text : {"&lt;loader&gt;", "other warps", "warp 0", "warp 3", "bulk load (1)"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(svg.find("warp 4"), std::string::npos);
}

TEST_F(Trace, SvgColoursWorkByItsGroupOfTheLegend) {
  TraceReport report;
  run(&report, Policy::kTimed);
  ASSERT_EQ(report.ops.size(), 1u);
  EXPECT_EQ(report.ops[0].group, TraceGroup::kCopy);
  for (const TraceGroup group : {TraceGroup::kCopy, TraceGroup::kTensor, TraceGroup::kMatrix}) {
    report.ops[0].group = group;
    const std::string svg = timeline_svg(report, {});
    // "<rect ... fill="COLOUR"/><text ...>NAME</text>" of the legend.
    const std::size_t name = svg.find(std::string(">") + name_of(group) + "</text>");
    ASSERT_NE(name, std::string::npos);
    const std::string colour = svg.substr(svg.rfind("fill=\"", name), 14);
    EXPECT_NE(svg.find(colour + " stroke="), std::string::npos) << colour;
  }
}

}  // namespace
}  // namespace mxfa::emu::test
