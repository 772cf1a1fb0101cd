#include "reference/datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "core/check.h"
#include "mx/bits.h"
#include "reference/gemm.h"
#include "reference/stream.h"

namespace mxfa::reference {
namespace {

/// What a stream of draws is for. The values enter every data set: never renumber them.
enum class Purpose : std::uint64_t {
  kQ = 1,
  kK = 2,
  kV = 3,
  kDout = 4,
  kQRows = 5,
  kKRows = 6,
  kVRows = 7,
  kDoutRows = 8,
  kChannels = 9,
  kDirection = 10,
  kTokens = 11,
  kWeightQ = 12,
  kWeightK = 13,
  kWeightV = 14,
};

/// A data set before it is rounded to BF16.
struct Draft {
  DatasetOptions options;
  Matrix<double> q, k, v, dout;

  Stream stream(Purpose purpose) const {
    return {options.seed, static_cast<std::uint64_t>(purpose)};
  }
  double root_dim() const { return std::sqrt(static_cast<double>(options.head_dim)); }
};

using Tensors = std::pair<Matrix<double> Draft::*, Purpose>;
constexpr Tensors kTensorRows[] = {{&Draft::q, Purpose::kQRows},
                                   {&Draft::k, Purpose::kKRows},
                                   {&Draft::v, Purpose::kVRows},
                                   {&Draft::dout, Purpose::kDoutRows}};

void scale(std::span<double> values, double factor) {
  for (double& value : values) value *= factor;
}
void add(std::span<double> row, std::span<const double> direction, double factor) {
  for (std::size_t c = 0; c < row.size(); ++c) row[c] += factor * direction[c];
}
double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
double rms(std::span<const double> values) {
  return values.empty() ? 1.0 : std::sqrt(dot(values, values) / static_cast<double>(values.size()));
}

/// A direction along D with RMS 1, so that its squared length is D.
std::vector<double> draw_direction(const Draft& draft) {
  std::vector<double> u = draft.stream(Purpose::kDirection).normals(draft.options.head_dim);
  scale(u, 1.0 / rms(u));
  return u;
}
void remove_direction(Matrix<double>& rows, const std::vector<double>& u) {
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    add(rows.row(i), u, -dot(rows.row(i), u) / static_cast<double>(u.size()));
  }
}

struct Moments {
  std::vector<double> mean;  ///< [D]
  Matrix<double> second;     ///< [D, D], mean of x x^T
};
Moments moments(const Matrix<double>& x) {
  Moments result{std::vector<double>(static_cast<std::size_t>(x.cols)), multiply_tn(x, x)};
  const double weight = x.rows > 0 ? 1.0 / static_cast<double>(x.rows) : 0.0;
  for (std::int64_t i = 0; i < x.rows; ++i) add(result.mean, x.row(i), weight);
  scale(result.second.data, weight);
  return result;
}
/// Scales Q so that the standard deviation of all logits is `target`. E S^2 = tr(Mq Mk) / D.
void set_logit_std(Draft& draft, double target) {
  const Moments q = moments(draft.q);
  const Moments k = moments(draft.k);
  const double mean = dot(q.mean, k.mean);
  const double variance = dot(q.second.data, k.second.data) - mean * mean;
  if (variance > 0) scale(draft.q.data, target * draft.root_dim() / std::sqrt(variance));
}

void make_normal(Draft&) {}
void make_diffuse(Draft& draft) { scale(draft.q.data, 0.25); }
void make_peaky(Draft& draft) { scale(draft.q.data, 5.0); }

void make_rmsnorm(Draft& draft) {
  constexpr std::int64_t kModelDim = 384;
  constexpr double kShared = 0.17;
  std::vector<double> amplitude(kModelDim);
  for (std::int64_t c = 0; c < kModelDim; ++c) {
    amplitude[c] = std::pow(static_cast<double>(c + 1), -0.55);
  }
  scale(amplitude, std::sqrt(1.0 - kShared) / rms(amplitude));
  const std::vector<double> shared = draft.stream(Purpose::kDirection).normals(kModelDim);
  const auto tokens = [&](std::int64_t count, Purpose purpose) {
    Matrix<double> x = draft.stream(purpose).normals(count, kModelDim);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = 0; c < kModelDim; ++c) x(i, c) *= amplitude[c];
      add(x.row(i), shared, std::sqrt(kShared));
      scale(x.row(i), 1.0 / rms(x.row(i)));
    }
    return x;
  };
  const auto weight = [&](Purpose purpose) {
    Matrix<double> w = draft.stream(purpose).normals(draft.options.head_dim, kModelDim);
    scale(w.data, 1.0 / std::sqrt(static_cast<double>(kModelDim)));
    return w;
  };
  const Matrix<double> kv = tokens(draft.options.seqlen_k, Purpose::kKRows);
  draft.q =
      linear_forward(tokens(draft.options.seqlen_q, Purpose::kQRows), weight(Purpose::kWeightQ));
  draft.k = linear_forward(kv, weight(Purpose::kWeightK));
  draft.v = linear_forward(kv, weight(Purpose::kWeightV));
  set_logit_std(draft, 2.7);
}

void scale_channel(Matrix<double>& x, std::int64_t channel, double factor) {
  for (std::int64_t i = 0; i < x.rows; ++i) x(i, channel) *= factor;
}

void make_outchan(Draft& draft) {
  Stream stream = draft.stream(Purpose::kChannels);
  const std::vector<std::int64_t> channels = stream.distinct(0, draft.options.head_dim, 6);
  for (int c = 0; c < 3; ++c) scale_channel(draft.k, channels[c], stream.uniform(20, 50));
  for (int c = 3; c < 6; ++c) scale_channel(draft.q, channels[c], stream.uniform(20, 50));
  set_logit_std(draft, 3.0);
}

void make_kbias(Draft& draft) {
  // The end of the range 20..50 that such channels have in practice: the harder one, O at 13 dB
  // without smoothing where the whole range gives 15 dB.
  Stream stream = draft.stream(Purpose::kChannels);
  for (const std::int64_t channel : stream.distinct(0, draft.options.head_dim, 4)) {
    const double bias = stream.sign() * stream.uniform(45, 50);
    for (std::int64_t j = 0; j < draft.k.rows; ++j) {
      draft.k(j, channel) = bias + 4.0 * draft.k(j, channel);
    }
  }
}

void make_sink(Draft& draft) {
  constexpr double kMean = 0.3;
  const std::int64_t seqlen_k = draft.options.seqlen_k;
  if (seqlen_k == 0) return;
  const std::vector<double> u = draw_direction(draft);
  for (std::int64_t i = 0; i < draft.q.rows; ++i) add(draft.q.row(i), u, kMean);
  // The other keys' mass is KV exp(variance / 2) in the mean: this logit balances it.
  const double logit = std::log(static_cast<double>(seqlen_k)) + 0.5 * (1.0 + kMean * kMean);
  scale(draft.k.row(0), 0.0);
  add(draft.k.row(0), u, logit / (kMean * draft.root_dim()));
  scale(draft.v.row(0), 0.05);
  for (const std::int64_t token : draft.stream(Purpose::kTokens).distinct(1, seqlen_k, 4)) {
    scale(draft.k.row(token), 3.0);
    scale(draft.v.row(token), 20.0);
  }
}

void make_lognorm(Draft& draft) {
  for (const auto& [tensor, purpose] : kTensorRows) {
    Stream stream = draft.stream(purpose);
    for (std::int64_t i = 0; i < (draft.*tensor).rows; ++i) {
      scale((draft.*tensor).row(i), std::exp2(std::clamp(stream.normal(), -3.0, 3.0)));
    }
  }
}

void make_dorow(Draft& draft) {
  Stream stream = draft.stream(Purpose::kDoutRows);
  for (std::int64_t i = 0; i < draft.dout.rows; ++i) {
    scale(draft.dout.row(i), 1e-4 * std::exp2(stream.normal() * 10.0 / 6.0));
  }
}

void make_vbias(Draft& draft) {
  scale(draft.q.data, 0.5);
  const std::vector<double> mean = draft.stream(Purpose::kVRows).normals(draft.options.head_dim);
  for (std::int64_t j = 0; j < draft.v.rows; ++j) add(draft.v.row(j), mean, 2.0);
}

void make_realign(Draft& draft) {
  for (const auto& [tensor, purpose] : kTensorRows) {
    Stream stream = draft.stream(purpose);
    Matrix<double>& x = draft.*tensor;
    for (std::int64_t i = 0; i < x.rows; ++i) {
      for (std::int64_t c = 0; c < x.cols; c += kScaleBlock) {
        const std::int64_t width = std::min<std::int64_t>(kScaleBlock, x.cols - c);
        scale(x.row(i).subspan(c, width), std::exp2(stream.uniform(-6, 6)));
      }
    }
    scale(x.data, 1.0 / rms(x.data));
  }
  set_logit_std(draft, 2.0);
}

void make_tied(Draft& draft, bool interleaved) {
  constexpr std::int64_t kDistinct = 8;
  const std::int64_t seqlen_k = draft.options.seqlen_k;
  const Matrix<double> keys = draft.stream(Purpose::kK).normals(kDistinct, draft.options.head_dim);
  for (std::int64_t j = 0; j < seqlen_k; ++j) {
    const std::int64_t key = interleaved ? j % kDistinct : j * kDistinct / seqlen_k;
    std::ranges::copy(keys.row(key), draft.k.row(j).begin());
  }
  for (double& value : draft.v.data) value = -std::abs(value);
}
void make_tiedblk(Draft& draft) { make_tied(draft, false); }
void make_tiedmix(Draft& draft) { make_tied(draft, true); }

void make_dom(Draft& draft, double mass) {
  constexpr double kAmplitude = 8.0;
  const std::int64_t seqlen_k = draft.options.seqlen_k;
  if (seqlen_k == 0) return;
  const std::vector<double> u = draw_direction(draft);
  remove_direction(draft.q, u);
  remove_direction(draft.k, u);
  const std::int64_t dominant = draft.stream(Purpose::kTokens).index(seqlen_k);
  const Matrix<double> logits = multiply_nt(draft.q, draft.k);
  for (std::int64_t i = 0; i < draft.q.rows; ++i) {
    double others = 0;
    for (std::int64_t j = 0; j < seqlen_k; ++j) {
      if (j != dominant) others += std::exp(logits(i, j) / draft.root_dim());
    }
    if (others == 0) others = 1;
    const double logit = std::log(mass / (1.0 - mass)) + std::log(others);
    add(draft.q.row(i), u, logit / (kAmplitude * draft.root_dim()));
  }
  scale(draft.k.row(dominant), 0.0);
  add(draft.k.row(dominant), u, kAmplitude);
}

void make_creep(Draft& draft) {
  constexpr double kRise = 12.0;
  const std::int64_t seqlen_k = draft.options.seqlen_k;
  const std::vector<double> u = draw_direction(draft);
  remove_direction(draft.k, u);
  for (std::int64_t i = 0; i < draft.q.rows; ++i) add(draft.q.row(i), u, 1.0);
  for (std::int64_t j = 1; j < seqlen_k; ++j) {
    const double rise = kRise * static_cast<double>(j) / static_cast<double>(seqlen_k - 1);
    add(draft.k.row(j), u, rise / draft.root_dim());
  }
}

struct Dataset {
  std::string_view name;
  void (*make)(Draft&);
};
constexpr Dataset kDatasets[] = {
    {"normal", make_normal},   {"diffuse", make_diffuse}, {"peaky", make_peaky},
    {"rmsnorm", make_rmsnorm}, {"outchan", make_outchan}, {"kbias", make_kbias},
    {"sink", make_sink},       {"lognorm", make_lognorm}, {"dorow", make_dorow},
    {"vbias", make_vbias},     {"realign", make_realign}, {"tiedblk", make_tiedblk},
    {"tiedmix", make_tiedmix}, {"creep", make_creep},
};
constexpr std::string_view kDomPrefix = "dom";

/// P of "domP"; nothing where the name is not of that form.
std::optional<double> dominant_mass(std::string_view name) {
  if (!name.starts_with(kDomPrefix)) return std::nullopt;
  name.remove_prefix(kDomPrefix.size());
  double mass = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), mass);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && mass > 0 && mass < 1 ? std::optional(mass) : std::nullopt;
}

void check_options(const DatasetOptions& options) {
  constexpr std::int64_t kMaxLength = std::int64_t{1} << 20;
  const auto in_range = [](std::int64_t value, std::int64_t low, std::int64_t high,
                           std::string_view argument) {
    core::expect(value >= low && value <= high, argument, fmt::format("{} .. {}", low, high),
                 core::text(value));
  };
  in_range(options.seqlen_q, 0, kMaxLength, "seqlen_q");
  in_range(options.seqlen_k, 0, kMaxLength, "seqlen_k");
  in_range(options.head_dim, 8, 1024, "head_dim");
}

Draft draw_normals(const DatasetOptions& options) {
  Draft draft{.options = options, .q = {}, .k = {}, .v = {}, .dout = {}};
  draft.q = draft.stream(Purpose::kQ).normals(options.seqlen_q, options.head_dim);
  draft.k = draft.stream(Purpose::kK).normals(options.seqlen_k, options.head_dim);
  draft.v = draft.stream(Purpose::kV).normals(options.seqlen_k, options.head_dim);
  draft.dout = draft.stream(Purpose::kDout).normals(options.seqlen_q, options.head_dim);
  return draft;
}

Matrix<float> rounded(const Matrix<double>& x) {
  Matrix<float> result(x.rows, x.cols);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    result.data[i] = mx::round_bf16(static_cast<float>(x.data[i]));
  }
  return result;
}

}  // namespace

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Dataset& dataset : kDatasets) {
      if (dataset.name == "creep") result.insert(result.end(), {"dom0.5", "dom0.9", "dom0.99"});
      result.emplace_back(dataset.name);
    }
    return result;
  }();
  return names;
}

HeadInputs make_dataset(std::string_view name, const DatasetOptions& options) {
  check_options(options);
  const auto* const found = std::ranges::find(kDatasets, name, &Dataset::name);
  const std::optional<double> mass = dominant_mass(name);
  core::expect(found != std::end(kDatasets) || mass.has_value(), "dataset",
               fmt::format("one of {}", fmt::join(dataset_names(), ", ")),
               fmt::format("\"{}\"", name));
  Draft draft = draw_normals(options);
  if (mass) {
    make_dom(draft, *mass);
  } else {
    found->make(draft);
  }
  return {.q = rounded(draft.q),
          .k = rounded(draft.k),
          .v = rounded(draft.v),
          .dout = rounded(draft.dout),
          .mask = {},
          .softmax_scale = 1.0 / draft.root_dim()};
}

}  // namespace mxfa::reference
