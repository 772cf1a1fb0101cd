#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/attention.h"

/// Synthetic inputs of one head, each a way in which real tensors strain an 8-bit format. The same
/// name, sizes and seed give the same BF16 values everywhere: draws are integers of SplitMix64
/// streams, normals come from Box-Muller in double. Each tensor has its own streams, so Q does not
/// depend on seqlen_k.
///
/// n is a fresh N(0, 1) draw for each element, D the head_dim, KV the seqlen_k; logits are
/// softmax_scale * Q K^T with softmax_scale = 1/sqrt(D). Where nothing is said Q = K = V = dO = n.
///
///   normal    nothing else: logits have std 1
///   diffuse   Q / 4: logits std 0.25, every key counts
///   peaky     Q * 5: logits std 5, a few keys of a row hold P
///   rmsnorm   projections of RMS-normalized tokens. A token has 384 channels: 0.83 of its energy
///             independent with channel amplitudes i^-0.55, 0.17 one vector that all tokens share
///             (queries too); three weights of n/sqrt(384). Q scaled to logits std 2.7
///   outchan   3 channels of K and 3 others of Q times U(20, 50); Q scaled to logits std 3
///   kbias     4 channels of K are +-U(45, 50) + 4n, the sign constant over the tokens
///   sink      Q has a mean 0.3 u (u ~ N(0, 1) along D) and K's token 0 is that direction, scaled
///             to a mean logit of log KV + 0.545: it takes 0.5 of P on average and anything from
///             0.05 to 0.99 of a row; its V is n/20. 4 other tokens have K * 3 and V * 20
///   lognorm   each row of Q, K, V and dO times 2^n, n clamped to +-3
///   dorow     dO rows times 1e-4 * 2^(n * 10/6): +-3 sigma span 2^10
///   vbias     V + 2n for each channel, Q / 2: V has a mean of twice its own std
///   realign   every block of 1x32 of each tensor times 2^U(-6, 6); tensors scaled to RMS 1, Q to
///             logits std 2
///   tiedblk   8 distinct keys, each repeated KV/8 times in a row; V = -|n|
///   tiedmix   the same keys interleaved
///   domP      dom0.5, dom0.9, ...: one key at a random place holds P of each row's mass. It is
///             8 u; u is removed from all other keys, and Q's u component sets the mass
///   creep     Q has a mean u, removed from K, then K's part along u grows: logits rise by 12
///             from the first key to the last
namespace mxfa::reference {

struct DatasetOptions {
  std::int64_t seqlen_q = 512;   ///< 0 .. 2^20
  std::int64_t seqlen_k = 1024;  ///< 0 .. 2^20
  std::int64_t head_dim = 128;   ///< 8 .. 1024
  std::uint64_t seed = 0;
};

/// The names above, in that order; domP as dom0.5, dom0.9 and dom0.99.
const std::vector<std::string>& dataset_names();

/// Every value is exact in BF16, the mask is empty. Any domP with 0 < P < 1 is known. Throws Error
/// on an unknown name or a size out of range.
HeadInputs make_dataset(std::string_view name, const DatasetOptions& options = {});

}  // namespace mxfa::reference
