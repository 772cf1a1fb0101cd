#include "common/attention_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace mxfa::bench {
namespace {

std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

AttentionCase dense(std::int64_t batch, std::int64_t heads, std::int64_t seqlen) {
  return {.name = fmt::format("b{}h{}n{}", batch, heads, seqlen),
          .batch = batch,
          .num_heads = heads,
          .num_heads_kv = heads,
          .seqlen_q = seqlen,
          .seqlen_k = seqlen};
}
AttentionCase causal(AttentionCase c) {
  c.causal = true;
  c.name += " causal";
  return c;
}
AttentionCase grouped(AttentionCase c, std::int64_t heads_kv) {
  c.num_heads_kv = heads_kv;
  c.name += fmt::format(" kv{}", heads_kv);
  return c;
}
/// Short queries against long keys.
AttentionCase cross(std::int64_t batch, std::int64_t queries, std::int64_t longest,
                    Lengths lengths) {
  const char* const kinds[] = {"equal", "uniform", "skewed"};
  return {.name = fmt::format("b{}h3q{} k {} {}", batch, queries, kinds[static_cast<int>(lengths)],
                              longest),
          .batch = batch,
          .num_heads = 3,
          .num_heads_kv = 3,
          .seqlen_q = queries,
          .seqlen_k = longest,
          .lengths = lengths};
}

std::vector<AttentionCase> cpu_preset(std::string_view name) {
  const AttentionCase peer = dense(1, 8, 2048);
  if (name == "peer") return {peer};
  if (name == "dense") {
    AttentionCase narrow = peer;
    narrow.head_dim = 64;
    narrow.name += " d64";
    return {peer, narrow, grouped(peer, 2), dense(8, 8, 512)};
  }
  if (name == "causal") return {causal(peer), causal(dense(8, 8, 512))};
  return {cross(16, 512, 2048, Lengths::kUniform), cross(16, 512, 2048, Lengths::kSkewed)};
}

std::vector<AttentionCase> gpu_preset(std::string_view name) {
  if (name == "tiny") {
    return {dense(1, 2, 200), causal(dense(1, 2, 200)), cross(3, 70, 200, Lengths::kUniform)};
  }
  if (name == "peer") return {dense(4, 16, 4096)};
  if (name == "dense") {
    return {dense(4, 16, 4096), dense(2, 16, 8192), dense(1, 16, 16384),
            cross(96, 512, 16384, Lengths::kEqual)};
  }
  if (name == "causal") return {causal(dense(1, 16, 16384)), causal(dense(4, 16, 4096))};
  std::vector<AttentionCase> cases;
  for (const std::int64_t longest : {4096, 8192, 16384}) {
    cases.push_back(cross(768, 512, longest, Lengths::kUniform));
  }
  cases.push_back(cross(768, 512, 16384, Lengths::kSkewed));
  cases.push_back(cross(256, 512, 16384, Lengths::kUniform));
  return cases;
}

}  // namespace

std::vector<std::int32_t> AttentionCase::cu_seqlens_q() const {
  std::vector<std::int32_t> offsets;
  for (std::int64_t s = 0; s <= batch; ++s) {
    offsets.push_back(static_cast<std::int32_t>(s * seqlen_q));
  }
  return offsets;
}

std::vector<std::int32_t> AttentionCase::cu_seqlens_k() const {
  std::uint64_t state = seed;
  const auto draw = [&] {
    return 1 + static_cast<std::int64_t>(splitmix64(state) % static_cast<std::uint64_t>(seqlen_k));
  };
  std::vector<std::int32_t> offsets{0};
  for (std::int64_t s = 0; s < batch; ++s) {
    std::int64_t length = seqlen_k;
    if (lengths == Lengths::kUniform) length = draw();
    if (lengths == Lengths::kSkewed) {
      const std::int64_t first = draw();
      length = std::min(first, draw());
    }
    offsets.push_back(static_cast<std::int32_t>(offsets.back() + length));
  }
  return offsets;
}

double AttentionCase::forward_flops() const {
  const double pairs = static_cast<double>(seqlen_q) * static_cast<double>(total_k());
  return 4.0 * static_cast<double>(num_heads) * pairs * static_cast<double>(head_dim) *
         (causal ? 0.5 : 1.0);
}

io::CaseRecord AttentionCase::record() const {
  return {.batch = batch,
          .num_heads = num_heads,
          .num_heads_kv = num_heads_kv,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .total_q = total_q(),
          .total_k = total_k(),
          .head_dim = head_dim,
          .causal = causal,
          .jagged = jagged()};
}

std::vector<AttentionCase> preset(std::string_view name, Scale scale) {
  std::vector<std::string_view> names{"peer", "dense", "causal", "jagged"};
  if (scale == Scale::kGpu) names.emplace_back("tiny");
  const auto one = [&](std::string_view which) {
    return scale == Scale::kCpu ? cpu_preset(which) : gpu_preset(which);
  };
  if (name == "all") {
    std::vector<AttentionCase> cases;
    for (const std::string_view which : {"dense", "causal", "jagged"}) {
      for (AttentionCase& c : one(which)) cases.push_back(std::move(c));
    }
    return cases;
  }
  core::expect(std::find(names.begin(), names.end(), name) != names.end(), "preset",
               fmt::format("{} or all", fmt::join(names, ", ")), fmt::format("'{}'", name));
  return one(name);
}

}  // namespace mxfa::bench
