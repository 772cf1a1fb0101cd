#include <cstring>

#include "exec/convert.h"
#include "exec/kernel_table.h"
#include "support.h"

/// The copies of the lane kernels for different instruction sets give the same bits, under full and
/// partial masks, and leave lanes outside of the mask alone.
namespace mxfa::emu::test {
namespace {

constexpr std::size_t kRowBytes = 8 * exec::kLanes;

struct Machine {
  alignas(64) std::array<std::byte, 8 * kRowBytes> rows;
  std::uint32_t preds[8] = {0xFFFFFFFFu, 0, 0x0F0F5A5Au, 0, 0, 0x12345678u};
  exec::Context context;
  ir::Inst in;

  explicit Machine(std::uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (std::byte& b : rows) b = static_cast<std::byte>(rng());
    // Some values are special in every width.
    for (std::size_t i = 0; i < rows.size(); i += 40) {
      const std::uint32_t special[] = {0, 0x7F800000u, 0x7FC00001u, 0x80000000u, 1, 0xFFFFFFFFu};
      std::memcpy(&rows[i], &special[i / 40 % 6], 4);
    }
    context.base[0] = rows.data();
    context.preds = preds;
    for (int k = 0; k < ir::kMaxInstOperands; ++k)
      in.op[k] = static_cast<std::int32_t>(k * kRowBytes);
  }
};

bool compares(const std::string& key) {
  return key.starts_with("setp") || key.starts_with("testp");
}

void set_operands(const std::string& key, ir::Inst& in) {
  if (compares(key)) {
    in.op[0] = 2 * 3;
    in.op[1] = 2 * 4;
    in.op[4] = 2 * 5;
    in.a = 1;
  }
  if (key == "selp.b32" || key == "selp.b64") in.op[3] = 2 * 2 + 1;
  if (key == "set.expand") in.op[1] = 2 * 2;
  if (key.starts_with("shfl")) in.op[1] = 2 * 3;
}

TEST(InstructionSets, SameBits) {
  const exec::KernelTable& reference = *exec::KernelTable::of(exec::Isa::kDefault);
  EXPECT_GT(reference.keys().size(), 500u);
  for (const exec::Isa isa : {exec::Isa::kAvx2, exec::Isa::kAvx512}) {
    const exec::KernelTable* table = exec::KernelTable::of(isa);
    if (table == nullptr) continue;
    for (const std::string& key : reference.keys()) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        const std::uint32_t mask = seed % 2 == 0 ? exec::kFullMask : 0x80F0A53Cu;
        Machine want(seed);
        Machine got(seed);
        set_operands(key, want.in);
        set_operands(key, got.in);
        reference.find(key)(want.context, want.in, mask);
        ASSERT_NE(table->find(key), nullptr) << key;
        table->find(key)(got.context, got.in, mask);
        ASSERT_EQ(want.rows, got.rows)
            << key << " seed " << seed << " isa " << static_cast<int>(isa);
        ASSERT_EQ(0, std::memcmp(want.preds, got.preds, sizeof(want.preds))) << key;
        ASSERT_EQ(want.context.carry, got.context.carry) << key;
      }
    }
  }
}

TEST(InstructionSets, MaskedLanesStay) {
  const exec::KernelTable& table = exec::KernelTable::best();
  constexpr std::uint32_t kMask = 0x80F0A53Cu;
  for (const std::string& key : table.keys()) {
    Machine before(1);
    Machine full(1);
    Machine partial(1);
    for (Machine* m : {&before, &full, &partial}) set_operands(key, m->in);
    table.find(key)(full.context, full.in, exec::kFullMask);
    table.find(key)(partial.context, partial.in, kMask);
    for (int p = 0; p < 8; ++p) {
      ASSERT_EQ(partial.preds[p], (full.preds[p] & kMask) | (before.preds[p] & ~kMask)) << key;
    }
    if (compares(key)) continue;
    if (key.starts_with("shfl"))
      continue;  // who takes part is part of its result; see warp_ops_test
    // A lane of the first row is as before or as in the full run, whatever its width.
    for (std::size_t slot : {4u, 8u}) {
      bool consistent = true;
      for (std::size_t lane = 0; lane < exec::kLanes; ++lane) {
        const std::byte* want =
            ((kMask >> lane) & 1u ? full : before).context.base[0] + lane * slot;
        consistent &= std::memcmp(partial.context.base[0] + lane * slot, want, slot) == 0;
      }
      if (consistent) break;
      ASSERT_EQ(slot, 4u) << key << ": lanes outside of the mask changed";
    }
  }
}

// Every fast conversion has a general counterpart that must agree with it; convert_test covers the
// instruction, this one that both are really there.
TEST(InstructionSets, HotConversionsAreVectorized) {
  const exec::KernelTable& table = exec::KernelTable::best();
  for (const char* key : {"cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.bf16x2.f32", "cvt.u64.u32",
                          "cvt.rn.f32.s32", "ex2.ftz.f32", "fma.f32", "max3.f32"}) {
    EXPECT_NE(table.find(key), nullptr) << key;
  }
}

}  // namespace
}  // namespace mxfa::emu::test
