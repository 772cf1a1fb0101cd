#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/attention.h"
#include "cpu/attention_tiles.h"
#include "cpu/non_finite.h"
#include "cpu/units.h"

/// Keys as the forward's products read them, a tile of kTileKeys at a time. Internal to
/// attention_forward().
namespace mxfa::cpu {

struct KeyTile {
  std::uint16_t* k_panels = nullptr;  ///< k = head_dim
  std::uint16_t* v_panels = nullptr;  ///< k = the tile's keys
  NonFinite v_non_finite;             ///< taken out of v_panels, where a mask can hide keys
};

/// Keys of a tile with those that pad them to whole panels.
inline std::int64_t padded_keys(std::int64_t seqlen_k, std::int64_t key0) {
  return round_up(std::min(kTileKeys, seqlen_k - key0), kPanel);
}

/// Packs tiles of one (sequence, kv head).
class KeyPacker {
 public:
  KeyPacker(const ForwardCall& call, std::int64_t sequence, std::int64_t head_kv);

  HeadRows& k() { return k_; }
  HeadRows& v() { return v_; }
  /// Writes a tile's panels of kTileKeys; `rows` is scratch.
  void pack(std::int64_t key0, Buffer<std::uint16_t>& rows, KeyTile& tile);

 private:
  const ForwardCall& call_;
  HeadRows k_, v_;
  std::int64_t dim_;
  std::int64_t panel_dim_;
};

/// All keys, packed once where many queries read them and they are few enough to keep.
class SharedKeys {
 public:
  /// Packs them into call.shared_keys, with all threads; empty where there is none.
  explicit SharedKeys(const ForwardCall& call);

  bool empty() const { return tiles_.empty(); }
  const KeyTile& at(std::int64_t sequence, std::int64_t head_kv, std::int64_t key0) const {
    const std::int64_t tiles =
        first_[static_cast<std::size_t>(sequence) + 1] - first_[static_cast<std::size_t>(sequence)];
    return tiles_[static_cast<std::size_t>(first_[static_cast<std::size_t>(sequence)] * heads_ +
                                           head_kv * tiles + key0 / kTileKeys)];
  }

 private:
  std::int64_t heads_;
  std::vector<std::int64_t> first_;  ///< tiles of one head before each sequence
  std::vector<KeyTile> tiles_;       ///< [sequence][kv head][tile]
};

}  // namespace mxfa::cpu
