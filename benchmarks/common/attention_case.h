#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/mask.h"
#include "io/json_records.h"

/// The shapes that attention is measured at, the same for every machine's benchmark and for peers.
namespace mxfa::bench {

/// How lengths of a jagged batch are drawn from 1 to the longest.
enum class Lengths : std::uint8_t {
  kEqual,    ///< all are the longest: a dense batch
  kUniform,  ///< 1 + draw mod longest
  kSkewed,   ///< the smaller of two uniform ones: a mean of a third, few long sequences
};

struct AttentionCase {
  std::string name;
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t seqlen_q = 0;  ///< of every sequence
  std::int64_t seqlen_k = 0;  ///< of the longest one
  std::int64_t head_dim = 128;
  bool causal = false;
  Lengths lengths = Lengths::kEqual;
  std::uint64_t seed = 1;

  bool jagged() const { return lengths != Lengths::kEqual; }
  attention::Mask mask() const { return {.causal = causal}; }
  /// Offsets [batch + 1]. Drawn by splitmix64 from `seed` alone, so that a script in another
  /// language draws the same lengths.
  std::vector<std::int32_t> cu_seqlens_q() const;
  std::vector<std::int32_t> cu_seqlens_k() const;
  std::int64_t total_q() const { return batch * seqlen_q; }
  std::int64_t total_k() const { return cu_seqlens_k().back(); }

  /// 4 (forward) or 10 (backward) * num_heads * sum(seqlen_q * seqlen_k) * head_dim, half of it
  /// under a causal mask.
  double forward_flops() const;
  double backward_flops() const { return 2.5 * forward_flops(); }
  io::CaseRecord record() const;
};

/// Sizes for a CPU, and those for a GPU.
enum class Scale : std::uint8_t { kCpu, kGpu };

/// "peer" (the one shape that is compared with other libraries on a CPU), "dense", "causal",
/// "jagged", "all" of those; on a GPU also "tiny", which the emulator runs in seconds. Throws Error
/// naming the known ones.
std::vector<AttentionCase> preset(std::string_view name, Scale scale);

}  // namespace mxfa::bench
