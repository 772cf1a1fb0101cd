#include "task.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mxfa::examples {
namespace {

constexpr int kLiked = 3;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

struct ClickTask::User {
  std::array<std::int64_t, kLiked> topics{};
  std::array<double, kLiked> liking{};  ///< in [0.4, 1)
};

ClickTask::ClickTask(const TaskOptions& options, std::uint64_t seed)
    : options_(options), appeal_(reference::Stream(seed, 0).normals(options.items)) {}

std::int32_t ClickTask::draw_item(reference::Stream& stream, const User& user) const {
  if (stream.uniform() < 0.5) return static_cast<std::int32_t>(stream.index(options_.items));
  // Item i is of topic i % topics.
  const std::int64_t topic = user.topics[static_cast<std::size_t>(stream.index(kLiked))];
  const std::int64_t of_topic = stream.index(options_.items / options_.topics);
  return static_cast<std::int32_t>(of_topic * options_.topics + topic);
}

double ClickTask::click_probability(const User& user, std::int32_t item) const {
  double liking = 0;
  for (int i = 0; i < kLiked; ++i) {
    if (user.topics[i] == item % options_.topics) liking = user.liking[i];
  }
  return sigmoid(-2.2 + 3.5 * liking + 0.5 * appeal_[static_cast<std::size_t>(item)]);
}

ClickBatch ClickTask::draw(reference::Stream& stream, std::int64_t users) const {
  ClickBatch batch;
  batch.cu_seqlens.push_back(0);
  for (std::int64_t u = 0; u < users; ++u) {
    User user;
    const auto topics = stream.distinct(0, options_.topics, kLiked);
    std::ranges::copy(topics, user.topics.begin());
    for (double& liking : user.liking) liking = stream.uniform(0.4, 1);
    const double length =
        static_cast<double>(options_.mean_events) * (stream.uniform() + stream.uniform());
    for (std::int64_t e = 0; e < std::llround(length); ++e) {
      batch.item.push_back(draw_item(stream, user));
      const double p = click_probability(user, batch.item.back());
      batch.clicked.push_back(stream.uniform() < p ? 1 : 0);
    }
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.events()));
    batch.candidate.push_back(draw_item(stream, user));
    batch.probability.push_back(click_probability(user, batch.candidate.back()));
    batch.label.push_back(stream.uniform() < batch.probability.back() ? 1.0f : 0.0f);
  }
  return batch;
}

double log_loss(const std::vector<double>& probability, const std::vector<float>& label) {
  double sum = 0;
  for (std::size_t i = 0; i < label.size(); ++i) {
    sum -= std::log(label[i] > 0 ? probability[i] : 1 - probability[i]);
  }
  return sum / static_cast<double>(label.size());
}

double base_entropy(const std::vector<float>& label) {
  double mean = 0;
  for (const float value : label) mean += value;
  mean /= static_cast<double>(label.size());
  return -mean * std::log(mean) - (1 - mean) * std::log(1 - mean);
}

}  // namespace mxfa::examples
