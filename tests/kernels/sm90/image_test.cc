#include <gtest/gtest.h>

#include "kernels/sm90/forward/launch.h"
#include "support/cubin.h"

namespace mxfa::testing {
namespace {

// What does not fit into a role's registers costs local memory (docs/kernels/sm90-forward.md).
void expect_no_frames(const std::string& module) {
  int images = 0;
  for (const driver::KernelImage& image : sm90::kernel_images()) {
    if (image.module != module) continue;
    ++images;
    const std::map<std::string, std::uint32_t> frames = Cubin(image.cubin).frames();
    EXPECT_FALSE(frames.empty());
    for (const auto& [name, bytes] : frames) {
      EXPECT_EQ(bytes, 0u) << name << ", bytes of local memory";
    }
  }
  EXPECT_EQ(images, 1);
}

TEST(ForwardImage, SpillsNothing) { expect_no_frames("attention_forward"); }

TEST(BackwardImage, SpillsNothing) {
  for (const char* module : {"attention_backward", "attention_backward_half",
                             "attention_backward_bf16", "attention_backward_tokens"}) {
    expect_no_frames(module);
  }
}

}  // namespace
}  // namespace mxfa::testing
