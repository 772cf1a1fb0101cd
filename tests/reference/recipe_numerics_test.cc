// The acceptance figures of both machines: SQNR against the oracle on the dequantized operands
// (kern) and on the BF16 inputs (f64), of tensors and of single rows.
#include <gtest/gtest.h>

#include "recipe_support.h"
#include "reference/datasets.h"

namespace mxfa::reference::recipe {
namespace {

struct Measured {
  StepTensors step;
  ForwardResult forward;
  BackwardResult backward;

  Measured(const HeadInputs& inputs, const RecipeConfig& config)
      : step(run_step(inputs, config)),
        forward(attention_forward(step.kern)),
        backward(attention_backward(step.kern, forward)) {}
};

struct Bar {
  const char* name;
  double got;
  double expected;  ///< dB
};

void expect_bars(const std::string& label, std::initializer_list<Bar> bars) {
  for (const Bar& bar : bars) {
    EXPECT_NEAR(bar.got, bar.expected, 1.0) << label << " " << bar.name;
  }
}

std::vector<NamedConfig> machines() {
  return {{"blackwell", RecipeConfig::blackwell()}, {"hopper", RecipeConfig::hopper()}};
}

TEST(RecipeNumerics, KernFiguresOfNormalData) {
  const HeadInputs inputs = make_dataset("normal", {.seqlen_q = 512, .seqlen_k = 1024});
  std::vector<Measured> measured;
  for (const NamedConfig& named : machines()) {
    const Measured& m = measured.emplace_back(inputs, named.config);
    expect_bars(named.name + " kern", {{"O", db(m.forward.o, m.step.o), 32.1},
                                       {"dV", db(m.backward.dv, m.step.dv), 31.3},
                                       {"dS", db(m.backward.ds, m.step.ds), 31.5},
                                       {"dQ", db(m.backward.dq, m.step.dq), 31.4},
                                       {"dK", db(m.backward.dk, m.step.dk), 31.5},
                                       {"P", db(m.forward.p, m.step.p), 32}});
    EXPECT_GE(db(m.forward.s, m.step.s), 70) << named.name;
    EXPECT_GE(db(m.backward.dp, m.step.dp), 70) << named.name;
    const std::vector<double> rows = sorted_row_sqnr(m.backward.dq, m.step.dq);
    const std::vector<double> keys = sorted_row_sqnr(m.backward.dk, m.step.dk);
    EXPECT_GE(rows[rows.size() / 100], 28) << named.name << " 1% quantile of dQ rows";
    EXPECT_GE(keys[keys.size() / 100], 27) << named.name << " 1% quantile of dK keys";
  }
  const auto same = [&](double a, double b, const char* name) {
    EXPECT_NEAR(a, b, 0.2) << "machines differ in " << name;
  };
  same(db(measured[0].forward.o, measured[0].step.o), db(measured[1].forward.o, measured[1].step.o),
       "O");
  same(db(measured[0].backward.dv, measured[0].step.dv),
       db(measured[1].backward.dv, measured[1].step.dv), "dV");
  same(db(measured[0].backward.dq, measured[0].step.dq),
       db(measured[1].backward.dq, measured[1].step.dq), "dQ");
  same(db(measured[0].backward.dk, measured[0].step.dk),
       db(measured[1].backward.dk, measured[1].step.dk), "dK");
}

TEST(RecipeNumerics, EndToEndFiguresOfNormalData) {
  const HeadInputs inputs = make_dataset("normal", {.seqlen_q = 512, .seqlen_k = 1024, .seed = 1});
  const ForwardResult forward = attention_forward(inputs);
  const BackwardResult backward = attention_backward(inputs, forward);
  for (const NamedConfig& named : machines()) {
    const StepTensors step = run_step(inputs, named.config);
    expect_bars(named.name + " f64", {{"S", db(forward.s, step.s), 28.5},
                                      {"P", db(forward.p, step.p), 26.9},
                                      {"O", db(forward.o, step.o), 25.4},
                                      {"dV", db(backward.dv, step.dv), 25.5},
                                      {"dP", db(backward.dp, step.dp), 28.5},
                                      {"dS", db(backward.ds, step.ds), 24.5},
                                      {"dQ", db(backward.dq, step.dq), 23.6},
                                      {"dK", db(backward.dk, step.dk), 23.7}});
  }
  const StepTensors bf16 = run_step(inputs, RecipeConfig::bf16());
  expect_bars("bf16 f64", {{"O", db(forward.o, bf16.o), 53.0},
                           {"dV", db(backward.dv, bf16.dv), 52.7},
                           {"dS", db(backward.ds, bf16.ds), 55.5},
                           {"dQ", db(backward.dq, bf16.dq), 52.5},
                           {"dK", db(backward.dk, bf16.dk), 52.6}});
}

// What rejects a static bound for dS: most keys of a sink row would be flushed to zero.
TEST(RecipeNumerics, SmallKeysOfSinkRowsSurvive) {
  const HeadInputs inputs = make_dataset("sink", {.seqlen_q = 256, .seqlen_k = 1024});
  for (const NamedConfig& named : machines()) {
    const Measured m(inputs, named.config);
    const std::vector<double> keys = sorted_row_sqnr(m.backward.dk, m.step.dk);
    EXPECT_GE(keys[keys.size() / 2], 30) << named.name << " median of dK keys";
  }
}

}  // namespace
}  // namespace mxfa::reference::recipe
