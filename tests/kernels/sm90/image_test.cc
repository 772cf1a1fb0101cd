#include <gtest/gtest.h>

#include "kernels/sm90/forward/launch.h"
#include "support/cubin.h"

namespace mxfa::testing {
namespace {

// What does not fit into a role's registers costs local memory (docs/kernels/sm90-forward.md).
void expect_frames(const std::string& module, std::uint32_t most) {
  int images = 0;
  for (const driver::KernelImage& image : sm90::kernel_images()) {
    if (image.module != module) continue;
    ++images;
    const std::map<std::string, std::uint32_t> frames = Cubin(image.cubin).frames();
    EXPECT_FALSE(frames.empty());
    for (const auto& [name, bytes] : frames) {
      EXPECT_LE(bytes, most) << name << ", bytes of local memory";
    }
  }
  EXPECT_EQ(images, 1);
}

TEST(ForwardImage, SpillsNothing) { expect_frames("attention_forward", 0); }

// In the code of the last tile of keys (docs/kernels/sm90-backward.md).
TEST(BackwardImage, HalfScoresSpillLittle) { expect_frames("attention_backward_half", 40); }

TEST(BackwardImage, SpillsNothing) {
  for (const char* module :
       {"attention_backward", "attention_backward_bf16", "attention_backward_tokens"}) {
    expect_frames(module, 0);
  }
}

}  // namespace
}  // namespace mxfa::testing
