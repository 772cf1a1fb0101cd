#include "reference/recipe/cross_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "reference/cross_attention_batch.h"
#include "support/compare.h"

/// The emulated module: what the recipe's rounding costs each tensor of a step.
namespace mxfa::reference::recipe {
namespace {

std::map<std::string, double> noise(const CrossAttentionInputs& inputs,
                                    const CrossAttentionConfig& config) {
  const CrossAttentionResult oracle = cross_attention(inputs);
  const CrossAttentionResult got = cross_attention_step(inputs, config).tensors;
  std::map<std::string, double> db;
  for (const auto& [name, member] : kCrossAttentionTensors) {
    EXPECT_EQ((got.*member).rows, (oracle.*member).rows) << name;
    EXPECT_EQ((got.*member).cols, (oracle.*member).cols) << name;
    db[std::string(name)] = testing::sqnr_db_of((got.*member).data, (oracle.*member).data);
  }
  return db;
}

CrossAttentionBatch small_batch() {
  return make_cross_attention_batch({.batch = 3,
                                     .seqlen_q = 32,
                                     .dim = 128,
                                     .num_heads = 4,
                                     .num_heads_kv = 2,
                                     .head_dim = 32,
                                     .max_seqlen_k = 300});
}

TEST(RecipeCrossAttention, Bf16IsCloseToTheOracle) {
  const CrossAttentionBatch batch = small_batch();
  for (const auto& [name, db] : noise(batch.inputs(), {.attention = RecipeConfig::bf16()})) {
    EXPECT_GE(db, 42) << name;
  }
}

/// One E4M3 rounding of a normal tensor leaves n = -31.5 dB of noise; independent ones add up. The
/// counts follow the operands from the inputs on (k: kv_norm, Wk and its own rounding).
TEST(RecipeCrossAttention, NoiseIsTheSumOfItsRoundings) {
  const CrossAttentionBatch batch = small_batch();
  const auto roundings = [](double db) { return std::pow(10, (31.5 - db) / 10); };
  for (const RecipeConfig& recipe : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    const auto db = noise(batch.inputs(), {.attention = recipe});
    EXPECT_NEAR(roundings(db.at("kv_norm")), 1, 0.15);
    EXPECT_NEAR(roundings(db.at("k")), 3, 0.3);
    EXPECT_NEAR(roundings(db.at("v")), 3, 0.3);
    EXPECT_NEAR(roundings(db.at("q")), 3, 0.3);
    EXPECT_NEAR(roundings(db.at("dout")), 3, 0.3);
    EXPECT_NEAR(roundings(db.at("dk")), 17, 3);  // S 6, dP 6, dS 1, q 3, its own
    EXPECT_NEAR(roundings(db.at("dv")), 11, 3);  // S 6, P 1, dout 3, its own
  }
}

TEST(RecipeCrossAttention, QueriesInBf16CostLess) {
  const CrossAttentionBatch batch = small_batch();
  const auto all = noise(batch.inputs(), {.attention = RecipeConfig::blackwell()});
  const auto less =
      noise(batch.inputs(), {.attention = RecipeConfig::blackwell(), .queries_bf16 = true});
  EXPECT_GE(less.at("seed_norm"), 50);
  EXPECT_EQ(less.at("kv_norm"), all.at("kv_norm"));
  for (const char* name : {"q", "o", "y", "dout", "dq", "dk", "dv", "dkv", "dwk", "dwo"}) {
    EXPECT_GE(less.at(name), all.at(name) + 0.7) << name;
  }
}

TEST(RecipeCrossAttention, PayloadsMeanTheValues) {
  const CrossAttentionBatch batch = small_batch();
  const CrossAttentionStep step =
      cross_attention_step(batch.inputs(), {.attention = RecipeConfig::blackwell()});
  EXPECT_EQ(step.k.values().data, step.tensors.k.data);
  EXPECT_EQ(step.dk.values().data, step.tensors.dk.data);
  EXPECT_EQ(step.k.payload().size(), step.tensors.k.data.size());
}

}  // namespace
}  // namespace mxfa::reference::recipe
