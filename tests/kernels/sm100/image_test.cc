#include <gtest/gtest.h>

#include "kernels/sm100/forward/entries.h"
#include "kernels/sm100/forward/launch.h"
#include "support/cubin.h"

namespace mxfa::testing {
namespace {

// What does not fit into a role's registers costs local memory in each step.
TEST(ForwardImage, NothingSpills) {
#define MXFA_NAME(name, head_dim, scale, leak_free) "attention_forward_" #name,
  const std::vector<std::string> names = {MXFA_SM100_FORWARD_ENTRIES(MXFA_NAME)};
#undef MXFA_NAME
  int images = 0;
  for (const driver::KernelImage& image : sm100::kernel_images()) {
    if (image.module != "attention_forward") continue;
    ++images;
    const std::map<std::string, std::uint32_t> frames = Cubin(image.cubin).frames();
    for (const std::string& name : names) {
      ASSERT_TRUE(frames.contains(name)) << image.arch << ": " << name;
      EXPECT_EQ(frames.at(name), 0u) << image.arch << ": " << name << ", bytes of local memory";
    }
  }
  EXPECT_GT(images, 0);
}

}  // namespace
}  // namespace mxfa::testing
