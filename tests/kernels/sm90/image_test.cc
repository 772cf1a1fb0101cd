#include <gtest/gtest.h>

#include "kernels/sm90/forward/launch.h"
#include "support/cubin.h"

namespace mxfa::testing {
namespace {

// What does not fit into a role's registers costs local memory. Producers have 32, and keep some
// numbers of a tile there; consumers must not begin to (docs/kernels/sm90-forward.md).
constexpr std::uint32_t kProducersBytes = 56;

TEST(ForwardImage, SpillsNoMoreThanTheProducers) {
  int images = 0;
  for (const driver::KernelImage& image : sm90::kernel_images()) {
    if (image.module != "attention_forward") continue;
    ++images;
    const std::map<std::string, std::uint32_t> frames = Cubin(image.cubin).frames();
    EXPECT_FALSE(frames.empty());
    for (const auto& [name, bytes] : frames) {
      EXPECT_LE(bytes, kProducersBytes) << name << ", bytes of local memory";
    }
  }
  EXPECT_EQ(images, 1);
}

}  // namespace
}  // namespace mxfa::testing
