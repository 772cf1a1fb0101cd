#include "mx/fp8.h"

#include <gtest/gtest.h>

namespace mxfa::mx {
namespace {

TEST(Fp8, EveryCodeRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const float e4m3 = decode_e4m3(static_cast<std::uint8_t>(code));
    if (!is_nan(e4m3)) {
      EXPECT_EQ(encode_e4m3(e4m3), code);
    }
  }
}

}  // namespace
}  // namespace mxfa::mx
