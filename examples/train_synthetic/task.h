#pragma once

#include <cstdint>
#include <vector>

#include "reference/stream.h"

/// A synthetic click task in the manner of ad ranking: will a user click a candidate, given the
/// items that the user has seen and which of them were clicked?
namespace mxfa::examples {

/// Items belong to topics. A user likes three topics, to different degrees, and the click
/// probability of an item depends on how much the user likes its topic, on the item's own appeal,
/// and on nothing else: sigmoid(-2.2 + 3.5 * liking + 0.5 * appeal). Half the events and half the
/// candidates are of liked topics. Histories have sum-of-two-uniforms lengths; some are empty.
struct TaskOptions {
  std::int64_t items = 64;
  std::int64_t topics = 8;
  std::int64_t mean_events = 24;
};

struct ClickBatch {
  std::vector<std::int32_t> cu_seqlens;  ///< [users + 1]
  std::vector<std::int32_t> item;        ///< [events]
  std::vector<std::int32_t> clicked;     ///< [events], 0 or 1
  std::vector<std::int32_t> candidate;   ///< [users]
  std::vector<float> label;              ///< [users], 0 or 1
  std::vector<double> probability;       ///< [users], the label's true one

  std::int64_t users() const { return static_cast<std::int64_t>(candidate.size()); }
  std::int64_t events() const { return static_cast<std::int64_t>(item.size()); }
};

class ClickTask {
 public:
  /// The items' appeals are drawn from `seed`.
  ClickTask(const TaskOptions& options, std::uint64_t seed);

  ClickBatch draw(reference::Stream& stream, std::int64_t users) const;
  const TaskOptions& options() const { return options_; }

 private:
  struct User;
  std::int32_t draw_item(reference::Stream& stream, const User& user) const;
  double click_probability(const User& user, std::int32_t item) const;

  TaskOptions options_;
  std::vector<double> appeal_;  ///< [items]
};

/// Mean of -log(probability of what happened), in nats.
double log_loss(const std::vector<double>& probability, const std::vector<float>& label);
/// The log loss of always predicting the mean label: what normalized entropy divides by.
double base_entropy(const std::vector<float>& label);

}  // namespace mxfa::examples
