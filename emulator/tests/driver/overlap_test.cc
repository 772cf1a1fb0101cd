#include "fixture.h"

/// Programmatic dependent launch under the hazard checker: a kernel that may begin before the one
/// in front of it has ended reads what that writes only after griddepcontrol.wait.
namespace mxfa::emu::test {
namespace {

constexpr const char* kChain = R"(
.version 9.0
.target sm_90a
.address_size 64
// p[0] = 5, and the kernel behind may begin.
.visible .entry leader(.param .u64 p)
{
  .reg .b64 d;
  griddepcontrol.launch_dependents;
  ld.param.u64 d, [p];
  st.global.u32 [d], 5;
  ret;
}
// p[1] = p[0]
.visible .entry waits(.param .u64 p)
{
  .reg .b32 r; .reg .b64 d;
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
  ld.param.u64 d, [p];
  ld.global.u32 r, [d]; st.global.u32 [d+4], r;
  ret;
}
.visible .entry impatient(.param .u64 p)
{
  .reg .b32 r; .reg .b64 d;
  ld.param.u64 d, [p];
  ld.global.u32 r, [d]; st.global.u32 [d+4], r;
  ret;
}
// Touches nothing of the others.
.visible .entry apart(.param .u64 p)
{
  .reg .b64 d;
  griddepcontrol.launch_dependents;
  ld.param.u64 d, [p];
  st.global.u32 [d+64], 1;
  ret;
}
)";

class OverlapTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_CU(mxemuSetChecker(1));
    ASSERT_CU(cuModuleLoadData(&module_, kChain));
    words_ = zeros(32);
  }
  void launch_on(CUstream on, const char* kernel, bool overlaps) {
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = overlaps ? 1 : 0;
    CUlaunchConfig how = config(1, 1, on);
    how.attrs = &attribute;
    how.numAttrs = 1;
    ASSERT_CU(launch(function(kernel), how, words_));
  }
  void expect_missing(const char* text) {
    EXPECT_CU(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
    const std::string report = last_report();
    EXPECT_NE(report.find(text), std::string::npos) << report;
    EXPECT_NE(report.find("kernel leader, launched before"), std::string::npos) << report;
    EXPECT_NE(report.find("st.global.u32 [d], 5;"), std::string::npos) << report;
  }
  CUdeviceptr words_ = 0;
};

TEST_F(OverlapTest, OnlyWhoWaitsMayRead) {
  launch_on(nullptr, "leader", false);
  launch_on(nullptr, "waits", true);
  EXPECT_EQ(first_word(words_ + 4, nullptr), 5u);
  launch_on(nullptr, "leader", false);
  launch_on(nullptr, "impatient", true);
  expect_missing("no griddepcontrol.wait: global buffer");
}

TEST_F(OverlapTest, OtherLaunchesAreOrdered) {
  launch_on(nullptr, "leader", false);
  launch_on(nullptr, "impatient", false);
  launch_on(nullptr, "leader", false);
  ASSERT_CU(cuMemsetD8Async(words_ + 8, 0, 4, nullptr));  // in front of the next one
  launch_on(nullptr, "impatient", true);
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
}

// A launch that has not waited may end before the one in front of it.
TEST_F(OverlapTest, WaitsAreForTheLaunchInFront) {
  for (const char* middle : {"waits", "apart"}) {
    launch_on(nullptr, "leader", false);
    launch_on(nullptr, middle, true);
    launch_on(nullptr, "waits", true);
    if (middle == std::string("waits")) EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
  }
  expect_missing("griddepcontrol.wait in each kernel between");
}

TEST_F(OverlapTest, InAGraph) {
  for (const char* second : {"waits", "impatient"}) {
    const CUstream s = stream();
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    ASSERT_CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_on(s, "leader", false);
    launch_on(s, second, true);
    ASSERT_CU(cuStreamEndCapture(s, &graph));
    ASSERT_CU(cuGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 2; ++i) ASSERT_CU(cuGraphLaunch(executable, s));
    if (second == std::string("waits")) EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(s));
  }
  expect_missing("no griddepcontrol.wait");
}

}  // namespace
}  // namespace mxfa::emu::test
