#include "device/operands.h"

#include <gtest/gtest.h>

#include "mx/bits.h"
#include "mx/lower.h"
#include "mx/permutation.h"
#include "reference/recipe/recipe.h"
#include "support/device_batch.h"
#include "support/rng.h"

namespace mxfa::device {
namespace {

using reference::Matrix;
using reference::recipe::RecipeConfig;
using testing::Guarded;

struct Case {
  const char* name;
  std::vector<std::int32_t> cu_seqlens_q;
  std::vector<std::int32_t> cu_seqlens_k;
  std::int64_t num_heads = 2;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 128;
  bool dense = false;
  bool broadcast_q = false;
  bool backward = false;
  bool leak_free = false;
  bool smooth = false;
  bool half_scores = false;
  DType dtype = DType::kBF16;
  std::int64_t gap = 0;  ///< elements between tokens
};

class Operands : public ::testing::TestWithParam<Case> {};

/// A tensor of attention in device memory, and its values.
struct Tensor {
  std::int64_t num_heads, head_dim, token_stride;
  std::vector<float> values;  ///< [total, num_heads, head_dim], rounded to BF16
  Guarded data;

  Tensor(const Case& test, std::int64_t total, std::int64_t heads, std::uint64_t seed)
      : num_heads(heads),
        head_dim(test.head_dim),
        token_stride(heads * test.head_dim + test.gap),
        data(testing::machine().poisoned(static_cast<std::size_t>(total * token_stride) *
                                         dtype_size(test.dtype))) {
    testing::Rng rng(seed);
    std::vector<std::uint8_t> bytes(
        static_cast<std::size_t>(total * token_stride) * dtype_size(test.dtype), 0xFF);
    for (std::int64_t i = 0; i < total * heads * head_dim; ++i) {
      // Scales differ from group to group.
      const auto value = static_cast<float>(
          std::ldexp(rng.normal(), static_cast<int>(i / (heads * head_dim) / 32 % 7)));
      const std::size_t at = i / (heads * head_dim) * token_stride + i % (heads * head_dim);
      const std::uint16_t code = mx::encode_bf16(value);
      if (test.dtype == DType::kF32) {
        std::memcpy(bytes.data() + at * 4, &value, 4);
      } else {
        std::memcpy(bytes.data() + at * 2, &code, 2);
      }
      values.push_back(mx::decode_bf16(code));
    }
    data.upload(bytes.data());
  }
  OperandInput input(const Case& test, std::int64_t seqlen) const {
    return {.data = data.as<const void>(),
            .dtype = test.dtype,
            .token_stride = token_stride,
            .head_stride = head_dim,
            .batch_stride = seqlen * token_stride};
  }
  Matrix<float> rows(std::int64_t first, std::int64_t count, std::int64_t head) const {
    Matrix<float> result(count, head_dim);
    for (std::int64_t i = 0; i < count * head_dim; ++i) {
      result.data[i] =
          values[((first + i / head_dim) * num_heads + head) * head_dim + i % head_dim];
    }
    return result;
  }
};

/// An operand's memory, read back, at the addresses that the contract gives.
class Reader {
 public:
  Reader(const AttentionOperand& operand, const mx::JaggedOffsets& offsets,
         const std::vector<std::uint8_t>& memory, const std::uint8_t* base)
      : operand_(operand), offsets_(offsets), memory_(memory), base_(base) {}

  std::uint8_t row_code(std::int64_t s, std::int64_t row, std::int64_t head,
                        std::int64_t column) const {
    return at(operand_.rows + (offsets_.tokens[s] + row) * operand_.token_stride +
              head * operand_.head_stride + column);
  }
  std::uint8_t transposed_code(std::int64_t s, std::int64_t position, std::int64_t head,
                               std::int64_t column) const {
    const std::int64_t tile = offsets_.tiles[s] + position / 128;
    return at(operand_.transposed + (tile * operand_.num_heads + head) * 128 * operand_.head_dim +
              128 * column + position % 128);
  }
  std::uint8_t scale(std::int64_t s, std::int64_t row, std::int64_t head) const {
    return at(operand_.scales.data +
              offsets_.scale_row(operand_.block_shape, s, row) * operand_.scales.row_stride +
              head * operand_.scales.head_stride);
  }
  static std::int64_t position(TokenOrder order, std::int64_t row) {
    const auto token = static_cast<int>(row % 16);
    if (order == TokenOrder::kPi) return row - token + mx::pi_position(token);
    return row - token + mx::sigma_position(token);
  }

  void expect(const mx::QuantizedMatrix& want, std::int64_t s, std::int64_t head,
              const std::string& label) const {
    const std::int64_t seqlen = offsets_.seqlen(s);
    ASSERT_EQ(want.rows, seqlen);
    int wrong = 0;
    for (std::int64_t row = 0; row < (seqlen + 127) / 128 * 128; ++row) {
      const bool exists = row < seqlen;
      if (exists) wrong += scale(s, row, head) != want.scale(row, 0) ? 1 : 0;
      for (std::int64_t c = 0; c < operand_.head_dim; ++c) {
        const std::uint8_t code = exists && c < want.cols ? want.code(row, c) : std::uint8_t{0};
        if (operand_.rows != nullptr && exists) wrong += row_code(s, row, head, c) != code ? 1 : 0;
        if (operand_.transposed == nullptr) continue;
        wrong += transposed_code(s, position(operand_.order, row), head, c) != code ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0) << label << " sequence " << s << " head " << head;
  }

 private:
  std::uint8_t at(const std::uint8_t* address) const { return memory_.at(address - base_); }

  const AttentionOperand& operand_;
  const mx::JaggedOffsets& offsets_;
  const std::vector<std::uint8_t>& memory_;
  const std::uint8_t* base_;
};

struct Call {
  const Case& test;
  mx::JaggedOffsets q_offsets, o_offsets, k_offsets;
  Guarded q_lengths, k_lengths;
  Tensor q, k, v, dout;
  std::vector<float> shift_k, shift_v;  ///< [batch, num_heads_kv, head_dim]
  Guarded shift_k_d, shift_v_d;
  OperandsSpec spec;

  explicit Call(const Case& c)
      : test(c),
        q_offsets(mx::make_jagged_offsets(c.cu_seqlens_q, c.cu_seqlens_q.back())),
        o_offsets(c.broadcast_q ? repeated(c) : q_offsets),
        k_offsets(mx::make_jagged_offsets(c.cu_seqlens_k, c.cu_seqlens_k.back())),
        q_lengths(testing::machine().upload(std::span<const std::int32_t>(c.cu_seqlens_q))),
        k_lengths(testing::machine().upload(std::span<const std::int32_t>(c.cu_seqlens_k))),
        q(c, q_offsets.tokens.back(), c.num_heads, 1),
        k(c, k_offsets.tokens.back(), c.num_heads_kv, 2),
        v(c, k_offsets.tokens.back(), c.num_heads_kv, 3),
        dout(c, o_offsets.tokens.back(), c.num_heads, 4),
        shift_k(testing::Rng(5).normal_values<float>(shifts(), 3)),
        shift_v(testing::Rng(6).normal_values<float>(shifts(), 3)),
        shift_k_d(testing::machine().upload(std::span<const float>(shift_k))),
        shift_v_d(testing::machine().upload(std::span<const float>(shift_v))) {
    spec.q_sequences = sequences(q_offsets, q_lengths, c.dense || c.broadcast_q);
    spec.k_sequences = sequences(k_offsets, k_lengths, c.dense);
    spec.q = q.input(c, spec.q_sequences.seqlen);
    spec.k = k.input(c, spec.k_sequences.seqlen);
    spec.v = v.input(c, spec.k_sequences.seqlen);
    spec.dout = dout.input(c, spec.q_sequences.seqlen);
    if (c.smooth) {
      spec.k.shift = shift_k_d.as<const float>();
      spec.v.shift = shift_v_d.as<const float>();
      spec.k.shift_batch_stride = spec.v.shift_batch_stride = c.num_heads_kv * c.head_dim;
    }
    spec.broadcast_q = c.broadcast_q;
    spec.num_heads = static_cast<std::int32_t>(c.num_heads);
    spec.num_heads_kv = static_cast<std::int32_t>(c.num_heads_kv);
    spec.head_dim = static_cast<std::int32_t>(c.head_dim);
    spec.backward = c.backward;
    spec.leak_free = c.leak_free;
    spec.half_scores = c.half_scores;
  }

  RecipeConfig config(std::int64_t s, std::int64_t head_kv) const {
    RecipeConfig result = RecipeConfig::hopper();
    if (test.leak_free) result = RecipeConfig::leak_free_of(result);
    if (test.smooth) {
      const std::int64_t at = (s * test.num_heads_kv + head_kv) * test.head_dim;
      result.smooth_k = result.smooth_v = true;
      result.shift_k.assign(shift_k.begin() + at, shift_k.begin() + at + test.head_dim);
      result.shift_v.assign(shift_v.begin() + at, shift_v.begin() + at + test.head_dim);
    }
    return result;
  }

 private:
  static mx::JaggedOffsets repeated(const Case& c) {
    std::vector<std::int32_t> lengths{0};
    for (std::size_t s = 1; s < c.cu_seqlens_k.size(); ++s) {
      lengths.push_back(lengths.back() + c.cu_seqlens_q.back());
    }
    return mx::make_jagged_offsets(lengths, lengths.back());
  }
  std::int64_t shifts() const {
    return std::ssize(test.cu_seqlens_k) * test.num_heads_kv * test.head_dim;
  }
  static Sequences sequences(const mx::JaggedOffsets& offsets, const Guarded& lengths, bool dense) {
    return {.cu_seqlens = dense ? nullptr : lengths.as<const std::int32_t>(),
            .seqlen = dense && offsets.batch() > 0 ? offsets.seqlen(0) : 0,
            .batch = static_cast<std::int32_t>(offsets.batch()),
            .total = offsets.tokens.back()};
  }
};

/// The recipe's payload as the kernels of a case want it.
struct Wanted {
  int lowered = 0;
  bool coarse = false;
  float half_sums = 0;

  mx::QuantizedMatrix of(const reference::recipe::Operand& operand) const {
    const Matrix<float>& x = operand.bf16;
    const mx::FloatView values = mx::row_major(x.data.data(), x.rows, x.cols);
    auto matrix = mx::lowered(operand.along_d, values, lowered, coarse);
    if (half_sums == 0) return matrix;
    return mx::for_half_sums(std::move(matrix), values, half_sums, coarse);
  }
};

TEST_P(Operands, AreTheRecipes) {
  const Case& test = GetParam();
  const Call call(test);
  testing::Machine& machine = testing::machine();
  const Guarded memory = machine.poisoned(static_cast<std::size_t>(operands_bytes(call.spec)));
  const AttentionOperands got = prepare_operands(machine.queue(), call.spec, memory.as<void>());
  machine.synchronize();
  EXPECT_TRUE(memory.guards_intact());
  const auto bytes = memory.download<std::uint8_t>();
  const auto* base = memory.as<const std::uint8_t>();
  const Reader q(got.q, call.q_offsets, bytes, base), k(got.k, call.k_offsets, bytes, base),
      v(got.v, call.k_offsets, bytes, base), dout(got.dout, call.o_offsets, bytes, base);
  EXPECT_EQ(got.q.transposed != nullptr, test.backward);
  EXPECT_EQ(got.v.rows != nullptr, test.backward);
  const std::int64_t heads_per_kv = test.num_heads / test.num_heads_kv;
  for (std::int64_t s = 0; s < call.k_offsets.batch(); ++s) {
    const std::int64_t q_sequence = test.broadcast_q ? 0 : s;
    for (std::int64_t h = 0; h < test.num_heads; ++h) {
      const std::int64_t head_kv = h / heads_per_kv;
      const auto& q_at = call.q_offsets;
      reference::HeadInputs inputs;
      inputs.q = call.q.rows(q_at.tokens[q_sequence], q_at.seqlen(q_sequence), h);
      inputs.k = call.k.rows(call.k_offsets.tokens[s], call.k_offsets.seqlen(s), head_kv);
      inputs.v = call.v.rows(call.k_offsets.tokens[s], call.k_offsets.seqlen(s), head_kv);
      if (test.backward) {
        inputs.dout = call.dout.rows(call.o_offsets.tokens[s], call.o_offsets.seqlen(s), h);
      }
      const auto want = reference::recipe::quantize_operands(inputs, call.config(s, head_kv));
      Wanted q_form, k_form{.coarse = test.leak_free}, v_form = k_form, dout_form;
      if (test.leak_free) v_form.lowered = kLoweredTokenV;
      if (test.half_scores) {
        q_form = {.lowered = kLoweredQ, .half_sums = mx::kHalfSumsQ};
        k_form = {.lowered = kLoweredK, .coarse = true, .half_sums = mx::kHalfSumsK};
        v_form = {.lowered = test.backward ? kLoweredV : 0, .half_sums = mx::kHalfSumsV};
        dout_form = {.lowered = kLoweredDout, .half_sums = mx::kHalfSumsDout};
      }
      q.expect(q_form.of(want.q), q_sequence, h, "q");
      k.expect(k_form.of(want.k), s, head_kv, "k");
      v.expect(v_form.of(want.v), s, head_kv, "v");
      if (test.backward) dout.expect(dout_form.of(want.dout), s, h, "dout");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Operands,
    ::testing::Values(
        Case{.name = "jagged", .cu_seqlens_q = {0, 5, 5, 135}, .cu_seqlens_k = {0, 33, 300, 300}},
        Case{.name = "backward",
             .cu_seqlens_q = {0, 17, 150},
             .cu_seqlens_k = {0, 129, 260},
             .backward = true},
        Case{.name = "dense",
             .cu_seqlens_q = {0, 70, 140},
             .cu_seqlens_k = {0, 130, 260},
             .head_dim = 64,
             .dense = true,
             .backward = true,
             .gap = 8},
        Case{.name = "broadcast",
             .cu_seqlens_q = {0, 40},
             .cu_seqlens_k = {0, 33, 33, 90},
             .broadcast_q = true,
             .backward = true},
        Case{.name = "leak_free",
             .cu_seqlens_q = {0, 40, 90},
             .cu_seqlens_k = {0, 50, 200},
             .num_heads_kv = 2,
             .leak_free = true},
        Case{.name = "half_scores",
             .cu_seqlens_q = {0, 40, 90},
             .cu_seqlens_k = {0, 50, 200},
             .half_scores = true},
        Case{.name = "half_scores_backward",
             .cu_seqlens_q = {0, 40, 90},
             .cu_seqlens_k = {0, 50, 200},
             .backward = true,
             .half_scores = true},
        Case{.name = "smooth",
             .cu_seqlens_q = {0, 40, 90},
             .cu_seqlens_k = {0, 50, 200},
             .num_heads_kv = 2,
             .smooth = true},
        Case{.name = "f32_narrow",
             .cu_seqlens_q = {0, 40, 90},
             .cu_seqlens_k = {0, 50, 200},
             .head_dim = 40,
             .backward = true,
             .dtype = DType::kF32},
        Case{.name = "odd_stride",
             .cu_seqlens_q = {0, 40, 90},
             .cu_seqlens_k = {0, 50, 200},
             .head_dim = 72,
             .gap = 1},
        Case{.name = "nothing", .cu_seqlens_q = {0, 0}, .cu_seqlens_k = {0, 0}, .backward = true}),
    [](const auto& spec) { return spec.param.name; });

TEST(OperandChecks, NameTheField) {
  const auto message = [](auto change) {
    OperandsSpec spec{.head_dim = 64};
    change(spec);
    try {
      operands_bytes(spec);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](OperandsSpec&) {}), "accepted");
  EXPECT_EQ(message([](OperandsSpec& s) { s.head_dim = 65; }).rfind("head_dim", 0), 0u);
  EXPECT_EQ(message([](OperandsSpec& s) { s.v.dtype = DType::kF16; }).rfind("v:", 0), 0u);
  EXPECT_EQ(message([](OperandsSpec& s) { s.k_sequences.total = 3; }).rfind("k_sequences", 0), 0u);
  EXPECT_EQ(message([](OperandsSpec& s) {
              s.broadcast_q = true;
              s.q_sequences = {.seqlen = 3, .batch = 2, .total = 6};
            }).rfind("q_sequences", 0),
            0u);
}

}  // namespace
}  // namespace mxfa::device
