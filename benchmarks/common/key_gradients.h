#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.h"

/// dK and dV of a few keys in float64, where the oracle's matrices [seqlen_q, seqlen_k] do not fit.
namespace mxfa::bench {

/// Of the first keys of a sequence, [keys, head_dim].
struct KeyGradients {
  std::vector<double> dk, dv;
};

/// Of the first `count` keys, by all queries of `inputs`. Each query's LSE and delta are of all of
/// its keys, from q, k, v and dout alone. All threads work; results do not depend on their number.
KeyGradients first_key_gradients(const reference::HeadInputs& inputs, std::int64_t count);

}  // namespace mxfa::bench
