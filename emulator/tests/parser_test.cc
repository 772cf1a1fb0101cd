#include <chrono>
#include <filesystem>

#include "exec/kernel_table.h"
#include "ir/allocate.h"
#include "ir/lower.h"
#include "ptx/debug_info.h"
#include "ptx/module.h"
#include "ptx/opcode.h"
#include "support.h"

namespace mxfa::emu::test {
namespace {

ptx::Module parse(const std::string& text) {
  auto source = std::make_shared<ptx::Source>();
  source->name = "t.ptx";
  source->text = text;
  return ptx::parse(source);
}

constexpr const char* kHeader = ".version 9.0\n.target sm_90a\n.address_size 64\n";

std::string parse_error(const std::string& text) {
  return error_of([&] { parse(kHeader + text); });
}

TEST(Parser, VariablesAndInitialisers) {
  const ptx::Module module = parse(std::string(kHeader) + R"(
.const .align 4 .b8 table[8] = {0, 0, 128, 63, 255};
.global .align 8 .u64 counter = 77;
.global .align 1 .b8 $str[3] = {97, 98};
.global .align 8 .u64 names[2] = {generic($str), generic($str)+1};
.global .f32 pi = 0f40490FDB;
.global .f64 tau = 0d401921FB54442D18;
.global .s32 minus[2] = {-1, 017};
.extern .shared .align 1024 .b8 dyn[];
.shared .align 16 .v4 .f32 tile[4][8];
)");
  ASSERT_EQ(module.variables.size(), 9u);
  const auto byte = [](const ptx::Variable& v, std::size_t i) {
    return static_cast<unsigned>(v.init.at(i));
  };
  EXPECT_EQ(module.variables[0].space, ptx::Space::kConst);
  EXPECT_EQ(byte(module.variables[0], 2), 128u);
  EXPECT_EQ(byte(module.variables[1], 0), 77u);
  EXPECT_EQ(module.variables[3].pointers.size(), 2u);
  EXPECT_EQ(module.variables[3].pointers[1].offset, 8u);
  EXPECT_EQ(module.variables[3].pointers[1].addend, 1);
  EXPECT_EQ(byte(module.variables[4], 3), 0x40u);
  EXPECT_EQ(byte(module.variables[5], 7), 0x40u);
  EXPECT_EQ(byte(module.variables[6], 0), 255u);
  EXPECT_EQ(byte(module.variables[6], 4), 15u);
  EXPECT_EQ(module.variables[7].bytes, 0u);
  EXPECT_EQ(module.variables[7].align, 1024u);
  EXPECT_EQ(module.variables[8].bytes, 4u * 8 * 16);
}

TEST(Parser, ScopesAndRepeatedLabels) {
  const ptx::Module module = parse(std::string(kHeader) + R"(
.visible .entry k(.param .u32 n)
.maxntid 128, 1, 1
.explicitcluster
.reqnctapercluster 2, 1, 1
{
  .reg .b32 %r<5>, x;
  .reg .pred %p<3>;
  {
    .reg .pred P1;
    .reg .b32 x;
    WAIT:
    setp.eq.u32 P1, x, 1;
    @P1 bra DONE;
    bra WAIT;
    DONE:
  }
  {
    .reg .pred P1;
    WAIT:
    @!P1 bra DONE;
    bra.uni WAIT;
    DONE:
  }
  .loc 1 2 3, function_name foo, inlined_at 1 2 3
  .pragma "nounroll";
  mov.u32 %r4, x;
  bra OUT;
  OUT:
}
)");
  const ptx::Function& f = module.functions.at(0);
  EXPECT_EQ(f.max_threads[0], 128u);
  EXPECT_EQ(f.cluster[0], 2u);
  EXPECT_TRUE(f.explicit_cluster);
  ASSERT_EQ(f.instructions.size(), 7u);
  EXPECT_EQ(f.instructions[1].operands[0].index, 3u);  // the first DONE
  EXPECT_EQ(f.instructions[2].operands[0].index, 0u);  // the first WAIT
  EXPECT_TRUE(f.instructions[3].guard_negated);
  EXPECT_EQ(f.instructions[3].operands[0].index, 5u);
  EXPECT_EQ(f.instructions[4].operands[0].index, 3u);
  EXPECT_EQ(f.instructions[6].operands[0].index, 7u);  // past the last instruction
  // The inner x is another register than the outer one.
  EXPECT_NE(f.instructions[0].operands[1].index, f.instructions[5].operands[1].index);
}

TEST(Parser, Operands) {
  const ptx::Module module = parse(std::string(kHeader) + R"(
.visible .entry k() {
  .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<3>;
  st.global.v2.u32 [%rd1+-8], {%r1, 0x10};
  shfl.sync.bfly.b32 %r1|%p1, %r2, 16, 31, -1;
  elect.sync _|%p1, 0xffffffff;
  mov.b64 %rd1, {%r1, _};
  add.f32 %r1, %r2, 0fBF800000;
}
)");
  using Kind = ptx::Operand::Kind;
  const auto& code = module.functions.at(0).instructions;
  EXPECT_EQ(code[0].operands[0].kind, Kind::kAddress);
  EXPECT_EQ(code[0].operands[0].value, -8);
  EXPECT_EQ(code[0].operands[1].parts[1].value, 16);
  EXPECT_EQ(code[1].operands[0].kind, Kind::kPair);
  EXPECT_EQ(code[1].operands[4].value, -1);
  EXPECT_EQ(code[2].operands[0].parts[0].kind, Kind::kSink);
  EXPECT_EQ(code[4].operands[2].value, 0xBF800000);
}

TEST(Parser, ErrorsNameTheLine) {
  const auto expect = [](const std::string& text, const char* where, const char* what) {
    const std::string message = parse_error(text);
    EXPECT_NE(message.find(where), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  expect(".visible .entry k() {\n bra NOWHERE;\n}", "t.ptx:5:", "NOWHERE");
  expect(".visible .entry k() {\n add.s32 %r1, %r2;\n", "t.ptx:6:", "function without '}'");
  expect(".visible .entry k() {\n .reg .b32 %r<4>;\n .reg .b32 %r<5>;\n}", "t.ptx:6:", "twice");
  expect(".global .b32 x[2] = {1, 2, 3};", "t.ptx:4:", "longer than its variable");
  expect(".global .b33 x;", "t.ptx:4:", "type");
  expect("/* never closed", "t.ptx:4:", "comment");
  expect(".visible .entry k() { .reg .b32 %r<99999999>; }", "t.ptx:4:", "count above");
  expect(".visible .entry k() { mov.u32 a, 0f1234; }", "t.ptx:4:", "digit count");
  expect("\x01", "t.ptx:4:", "0x01");
  expect(".visible .entry k() { @x bra y; }", "t.ptx:4:", "predicate");
  std::string nested = ".visible .entry k() ";
  for (int i = 0; i < 100; ++i) nested += "{";
  expect(nested, "t.ptx:4:", "nested too deeply");
  EXPECT_NE(error_of([] { parse(".target sm_90a"); }).find(".version"), std::string::npos);
}

TEST(Parser, LabelsOfSourceFilesAndSections) {
  const ptx::Module module = parse(std::string(kHeader) + R"(
.extern .func (.param .b32 func_retval0) vprintf
(
  .param .b64 vprintf_param_0,
  .param .b64 vprintf_param_1
)
;
.file 1 "a.cu"
.section .debug_str
{
$L__info_string0:
.b8 95,90,0
}
)");
  EXPECT_EQ(module.functions.at(0).name, "vprintf");
}

TEST(Opcodes, QualifiersAreKnownOrRefused) {
  ptx::OpcodeFinder finder;
  for (const char* good :
       {"add.s32", "add.rn.ftz.f32", "ld.global.nc.L1::no_allocate.L2::128B.v4.f32",
        "ld.relaxed.gpu.global.u32", "st.shared::cta.v2.b64", "cvt.rn.satfinite.e4m3x2.f32",
        "setp.lt.and.s32", "shfl.sync.bfly.b32", "barrier.cluster.arrive.release.aligned",
        "barrier.cta.sync.aligned", "fence.proxy.async.shared::cta", "max.NaN.abs.f32",
        "atom.acq_rel.gpu.global.cas.b32", "red.relaxed.gpu.global.add.noftz.bf16x2",
        "createpolicy.fractional.L2::evict_first.b64",
        "mbarrier.try_wait.parity.shared::cta.b64"}) {
    EXPECT_NE(finder.find(good), nullptr) << good;
  }
  for (const char* bad : {"add.s33", "add.f32.rn", "ld.global.v3.f32", "cvt.rn.e4m3x2.f32", "foo",
                          "setp.lo.f32", "max.s32.NaN", "shfl.sync.b32", "add", "bra.unii", ""}) {
    EXPECT_EQ(finder.find(bad), nullptr) << bad;
  }
  EXPECT_EQ(finder.find("add.rn.f32")->key, "add.f32");
  EXPECT_EQ(finder.find("mul.wide.s32")->type->name, "s32");
  EXPECT_EQ(finder.find("cvt.f32.f16")->first_type->name, "f32");
}

// Every spelling that a pattern of a lane opcode allows has a kernel.
void spell(const std::vector<std::vector<std::string>>& groups, std::size_t at, std::string text,
           std::vector<std::string>& out) {
  if (at == groups.size()) {
    out.push_back(text);
    return;
  }
  for (const std::string& choice : groups[at]) {
    spell(groups, at + 1, choice.empty() ? text : text + (text.empty() ? "" : ".") + choice, out);
  }
}

TEST(Opcodes, EveryLaneOpcodeHasAKernel) {
  ptx::OpcodeFinder finder;
  const exec::KernelTable& kernels = exec::KernelTable::best();
  std::size_t checked = 0;
  for (const ptx::OpcodeSpec& spec : ptx::opcode_table()) {
    if (spec.op != ptx::OpClass::kLane && spec.op != ptx::OpClass::kSetp) continue;
    std::vector<std::vector<std::string>> groups;
    std::stringstream words{std::string(spec.pattern)};
    for (std::string word; words >> word;) {
      if (word.back() == '-') word.pop_back();
      std::vector<std::string> choices;
      if (word.front() == '[') {
        choices.emplace_back();
        word = word.substr(1, word.size() - 2);
      }
      std::stringstream parts(word);
      for (std::string part; std::getline(parts, part, '|');) choices.push_back(part);
      groups.push_back(choices);
    }
    std::vector<std::string> spellings;
    spell(groups, 0, "", spellings);
    for (const std::string& text : spellings) {
      const ptx::Opcode* opcode = finder.find(text);
      ASSERT_NE(opcode, nullptr) << text;
      const std::string_view base = opcode->qualifiers[0];
      if (base == "selp" || base == "slct" || base == "set" || base == "shr") continue;
      // .xorsign exists only together with .abs, which exists alone only for f32.
      const bool short_abs = opcode->type->bits != 32 || opcode->type->name != "f32";
      if (opcode->has("xorsign") && !opcode->has("abs")) continue;
      if (opcode->has("abs") && !opcode->has("xorsign") && short_abs && base != "abs") continue;
      EXPECT_NE(kernels.find(opcode->key), nullptr) << text << " key " << opcode->key;
      ++checked;
    }
  }
  EXPECT_GT(checked, 900u);
}

TEST(Lowering, RegistersShareRows) {
  GlobalMemory memory;
  const Module module(kernel_ptx("softmax_row", "sm_100a"), "softmax_row", memory);
  const EntryInfo info = module.entry("softmax_row");
  EXPECT_GT(info.instructions, 700u);
  EXPECT_LT(info.register_bytes, 40u << 10);  // more than 900 virtual registers of 128 bytes
}

TEST(Lowering, OneInstructionNeverReadsAndWritesDifferentRegistersInOneRow) {
  // r0 = ...; r1 = f(r0), the last use of r0; r2 = f(r1): r2 may take the row of r0, r1 may not.
  const std::vector<ir::Inst> code(4);
  const std::vector<ir::RegisterUse> uses = {{0, 0, 0, 0, true, false}, {1, 0, 0, 1, false, false},
                                             {1, 1, 0, 0, true, false}, {2, 1, 0, 1, false, false},
                                             {2, 2, 0, 0, true, false}, {3, 2, 0, 1, false, false}};
  const std::vector<ir::VirtualRegister> registers(3);
  const ir::Allocation allocation = ir::allocate_registers(code, uses, registers);
  EXPECT_NE(allocation.place[0], allocation.place[1]);
  EXPECT_NE(allocation.place[1], allocation.place[2]);
  EXPECT_EQ(allocation.place[0], allocation.place[2]);
}

TEST(Lowering, CommittedPtxIsWhatNvccEmits) {
  if (std::string(MXEMU_PTX_DIR) == MXEMU_COMMITTED_PTX_DIR) return;  // no nvcc: nothing to compare
  for (const auto& entry : std::filesystem::directory_iterator(MXEMU_COMMITTED_PTX_DIR)) {
    const auto code = [](const std::filesystem::path& path) {
      std::ifstream file(path);
      std::string text;
      for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("//")) text += line + "\n";
      }
      return text;
    };
    const auto fresh = std::filesystem::path(MXEMU_PTX_DIR) / entry.path().filename();
    EXPECT_EQ(code(entry.path()), code(fresh)) << "run `ninja emulator_ptx`: " << entry.path();
  }
}

TEST(DebugInfo, KnowsWhereAFunctionWasInlined) {
  ptx::Source source;
  source.text =
      "\t.file 1 \"/source/a.cu\"\n\t.file 2 \"/usr/b.cuh\"\n{\n"
      "\t.loc 1 40 5\n"
      "\t.loc 2 7 3, function_name f, inlined_at 1 40 5\n"
      "\t.loc 2 3 1, function_name $L+4, inlined_at 2 7 3\n"
      "\tret;\n\t.loc 1 41 1\n}\n";
  const ptx::DebugInfo debug(source);
  const ptx::SourcePosition inner = debug.at(7);
  EXPECT_EQ(inner.file, "/usr/b.cuh");
  EXPECT_EQ(inner.line, 3u);
  EXPECT_EQ(inner.inlined_at, "b.cuh:7, a.cu:40");
  EXPECT_EQ(debug.at(4).inlined_at, "");
  EXPECT_EQ(debug.at(8).line, 41u);
  EXPECT_EQ(debug.at(10).line, 0u);
}

}  // namespace
}  // namespace mxfa::emu::test
