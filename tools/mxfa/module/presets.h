#pragma once

#include <array>
#include <string_view>

#include "reference/cross_attention_batch.h"

/// Sizes and pass bars of `mxfa module`.
namespace mxfa::cli::module {

struct Preset {
  std::string_view name;
  std::string_view what;
  reference::CrossAttentionBatchOptions options;
};

inline constexpr std::array<Preset, 3> kPresets{{
    {"tiny",
     "a second or two",
     {.batch = 8, .seqlen_q = 32, .dim = 128, .num_heads = 1, .max_seqlen_k = 512}},
    {"default",
     "well within a minute on two cores",
     {.batch = 16, .seqlen_q = 256, .dim = 384, .num_heads = 3, .max_seqlen_k = 4096}},
    {"s30",
     "the published production-like run: 768 sequences, 5.9 M keys, 54 GB; take fewer by --batch",
     {.batch = 768,
      .seqlen_q = 512,
      .dim = 384,
      .num_heads = 3,
      .max_seqlen_k = 16384,
      .sparsity = 0.535}},
}};

/// The lowest SQNR at which a tensor passes; down to kBorderlineDb below it is borderline.
struct Bar {
  std::string_view tensor;
  double db = 0;
};
inline constexpr double kBorderlineDb = 1;
/// What the module owes on such data, whatever the emulation gives: no bar lies below.
inline constexpr std::array<Bar, 4> kLeastBars{{{"o", 21.5}, {"dq", 20}, {"dk", 18.4}, {"dv", 20}}};
/// How far below the emulation's lowest figure a bar lies: what other draws and sizes may cost.
inline constexpr double kBarMarginDb = 0.4;

/// From the recipe emulation (src/reference/recipe/cross_attention.h) of both machines, MXFP8
/// against BF16: the lowest figure over batches of the presets' shapes (tiny with seeds 0 to 3;
/// default with 2 sequences, seeds 0 and 1; s30 with 1 sequence), less the margin, rounded down to
/// 0.1 dB, or the least bar.
inline constexpr std::array<Bar, 24> kBars{{
    {"seed_norm", 30.9},
    {"kv_norm", 31.0},
    {"q", 26.2},
    {"k", 26.2},
    {"v", 26.2},
    {"o", 22.0},
    {"lse", 52.7},
    {"y", 21.0},
    {"dout", 26.2},
    {"delta", 20.4},
    {"dq_seq", 20.0},
    {"dq", 20.0},
    {"dk", 18.5},
    {"dv", 20.5},
    {"dseed_norm", 19.4},
    {"dkv_norm", 19.1},
    {"dseeds", 19.5},
    {"dkv", 19.1},
    {"dseed_norm_weight", 18.5},
    {"dkv_norm_weight", 20.3},
    {"dwq", 19.6},
    {"dwk", 19.5},
    {"dwv", 20.8},
    {"dwo", 20.9},
}};

}  // namespace mxfa::cli::module
