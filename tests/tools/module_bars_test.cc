#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "module/presets.h"
#include "reference/attention.h"
#include "reference/recipe/cross_attention.h"

/// The bars of `mxfa module` are what the recipe emulation gives, by the rule beside them.
namespace mxfa::cli::module {
namespace {

namespace recipe = reference::recipe;

struct Shape {
  std::string_view preset;
  std::int64_t batch;
  std::uint64_t seeds;
};
constexpr Shape kShapes[] = {{"tiny", 8, 4}, {"default", 2, 2}, {"s30", 1, 1}};

TEST(ModuleBarsFull, FollowFromTheEmulation) {
  std::map<std::string_view, double> lowest;
  for (const Shape& shape : kShapes) {
    reference::CrossAttentionBatchOptions options =
        std::ranges::find(kPresets, shape.preset, &Preset::name)->options;
    options.batch = shape.batch;
    for (options.seed = 0; options.seed < shape.seeds; ++options.seed) {
      const reference::CrossAttentionBatch batch = make_cross_attention_batch(options);
      const auto step = [&](const recipe::RecipeConfig& config) {
        return recipe::cross_attention_step(batch.inputs(), {.attention = config}).tensors;
      };
      const reference::CrossAttentionResult bf16 = step(recipe::RecipeConfig::bf16());
      for (const auto& config :
           {recipe::RecipeConfig::blackwell(), recipe::RecipeConfig::hopper()}) {
        const reference::CrossAttentionResult mxfp8 = step(config);
        for (const auto& [name, member] : reference::kCrossAttentionTensors) {
          const double db = reference::sqnr_db((bf16.*member).data, (mxfp8.*member).data);
          const auto [at, added] = lowest.emplace(name, db);
          at->second = std::min(at->second, db);
        }
      }
    }
  }
  ASSERT_EQ(lowest.size(), kBars.size());
  for (const Bar& bar : kBars) {
    const double db = lowest.at(bar.tensor);
    RecordProperty(std::string(bar.tensor), std::to_string(db));
    const auto* const least = std::ranges::find(kLeastBars, bar.tensor, &Bar::tensor);
    const double floor = least == kLeastBars.end() ? 0 : least->db;
    EXPECT_NEAR(bar.db, std::max(floor, std::floor((db - kBarMarginDb) * 10) / 10), 0.01)
        << bar.tensor << ": lowest " << db << " dB";
  }
}

}  // namespace
}  // namespace mxfa::cli::module
