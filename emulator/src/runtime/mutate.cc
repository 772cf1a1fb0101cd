#include "mxemu/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "mxemu/error.h"
#include "ptx/debug_info.h"
#include "ptx/module.h"

namespace mxfa::emu {
namespace {

std::vector<std::string_view> split(std::string_view opcode) {
  std::vector<std::string_view> words;
  while (!opcode.empty()) {
    const std::size_t dot = std::min(opcode.find('.'), opcode.size());
    words.push_back(opcode.substr(0, dot));
    opcode.remove_prefix(std::min(dot + 1, opcode.size()));
  }
  return words;
}

/// One instruction of the text, and the mutants that it has.
class Site {
 public:
  Site(const ptx::Source& source, const ptx::Instruction& instruction, std::vector<Mutation>& out)
      : source_(source), words_(split(instruction.opcode)), out_(out) {
    line_ = instruction.line;
    const std::string& text = source.text;
    opcode_ = static_cast<std::size_t>(instruction.opcode.data() - text.data());
    end_ = std::min(text.find(';', opcode_), text.size() - 1) + 1;
    begin_ = opcode_;
    if (instruction.guard >= 0) begin_ = text.rfind('@', opcode_);
    guard_ = text.substr(begin_, opcode_ - begin_);
    after_opcode_ = opcode_ + instruction.opcode.size();
  }

  void find() {
    const std::string_view first = words_[0];
    if (first == "mbarrier") return mbarrier();
    if (first == "fence" || first == "membar") return add("fence", "removed", "");
    if (first == "bar" || first == "barrier") return barrier();
    if (first == "wgmma" || first == "tcgen05") return matrix();
    if (first == "cp") return copies();
    if (first == "griddepcontrol" && has("wait")) return add("wait", "removed", "");
    if (first == "ld" || first == "st" || first == "atom" || first == "red")
      return ordered_access();
  }

 private:
  bool has(std::string_view word) const { return std::ranges::find(words_, word) != words_.end(); }
  std::string_view text(std::size_t begin, std::size_t end) const {
    return std::string_view(source_.text).substr(begin, end - begin);
  }

  void add(const char* kind, const std::string& change, const std::string& replacement) {
    out_.push_back({line_,
                    {},
                    0,
                    {},
                    kind,
                    std::string(text(begin_, end_)),
                    change,
                    begin_,
                    end_,
                    replacement});
  }

  /// The statement with another opcode.
  void add_opcode(const char* kind, const std::string& change, const std::string& opcode) {
    add(kind, change, guard_ + opcode + std::string(text(after_opcode_, end_)));
  }
  std::string opcode_without(std::string_view word) const {
    return fmt::format("{}", fmt::join(without(word), "."));
  }
  std::vector<std::string_view> without(std::string_view word) const {
    std::vector<std::string_view> words = words_;
    std::erase(words, word);
    return words;
  }
  std::string opcode_with(std::string_view old_word, std::string_view new_word) const {
    std::vector<std::string_view> words = words_;
    std::ranges::replace(words, old_word, new_word);
    return fmt::format("{}", fmt::join(words, "."));
  }

  /// Where the operands are, split at commas outside of brackets.
  std::vector<std::pair<std::size_t, std::size_t>> operands() const {
    std::vector<std::pair<std::size_t, std::size_t>> result;
    std::size_t begin = after_opcode_;
    int depth = 0;
    for (std::size_t at = after_opcode_; at < end_; ++at) {
      const char c = source_.text[at];
      depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
      if (depth != 0 || (c != ',' && c != ';')) continue;
      result.emplace_back(begin, at);
      begin = at + 1;
    }
    return result;
  }

  void mbarrier() {
    if (has("try_wait") || has("test_wait")) {
      const auto result = operands().front();
      add("wait", "always true",
          fmt::format("{}setp.eq.u32 {}, 0, 0;", guard_, text(result.first, result.second)));
      if (!has("relaxed")) weaken_mbarrier("wait", "acquire");
      return;
    }
    if (has("arrive") || has("arrive_drop")) {
      if (has("expect_tx")) return expect(true);
      add("arrive", "removed", "");
      if (!has("noComplete") && !has("relaxed")) weaken_mbarrier("arrive", "release");
      return;
    }
    if (has("expect_tx")) {
      add("expect_tx", "removed", "");
      expect(false);
    }
  }

  /// Without memory order.
  void weaken_mbarrier(const char* kind, std::string_view order) {
    std::vector<std::string_view> words = without(order);
    const auto after = std::ranges::find_if(words, [](std::string_view word) {
      return word == "cta" || word == "cluster" || word.starts_with("shared") || word == "b64";
    });
    const bool scoped = *after == "cta" || *after == "cluster";
    const auto at = words.insert(after, "relaxed");
    if (!scoped) words.insert(at + 1, "cta");
    add_opcode(kind, "relaxed", fmt::format("{}", fmt::join(words, ".")));
  }

  void expect(bool arrives) {
    const auto bytes = operands().back();
    const std::string_view value = text(bytes.first, bytes.second);
    for (const int step : {16, -16}) {
      // A scope of its own for the changed number; the guard holds for both.
      const char* name = "ptxemu_bytes";
      const std::string sum = fmt::format("{}add.s32 {}, {}, {};", guard_, name, value, step);
      add("expect_tx", fmt::format("bytes {} 16", step > 0 ? "+" : "-"),
          fmt::format("{{ .reg .b32 {}; {} {}{} {}; }}", name, sum, guard_,
                      text(opcode_, bytes.first), name));
    }
    if (!arrives) return;
    const auto first = operands().front();
    add("expect_tx", "only the arrival",
        fmt::format("{}{}{};", guard_, opcode_without("expect_tx"),
                    text(first.first, operands()[1].second)));
    weaken_mbarrier("arrive", "release");
  }

  void barrier() {
    if (has("red")) return;  // its result is needed
    add(has("warp") ? "barrier" : has("arrive") ? "arrive" : "barrier", "removed", "");
    if (has("cluster") && has("arrive") && !has("relaxed")) {
      std::vector<std::string_view> words = without("release");
      words.insert(words.begin() + 3, "relaxed");
      add_opcode("arrive", "relaxed", fmt::format("{}", fmt::join(words, ".")));
    }
  }

  void matrix() {
    const std::string_view word = words_[1];
    if (word == "fence" || word.starts_with("fence::")) add("fence", "removed", "");
    if (word == "commit_group" || word == "commit") add("commit", "removed", "");
    if (word.starts_with("wait::")) add("wait", "removed", "");
    if (word == "wait_group") wait_group();
  }

  void copies() {
    if (has("commit_group")) add("commit", "removed", "");
    if (has("wait_all")) add("wait", "removed", "");
    if (has("mbarrier") && has("arrive")) add("arrive", "removed", "");
    if (!has("wait_group")) return;
    wait_group();
    if (has("bulk") && !has("read")) {
      add_opcode("wait", "reads only", fmt::format("{}.read", fmt::join(words_, ".")));
    }
  }

  void wait_group() {
    add("wait", "removed", "");
    const auto count = operands().front();
    std::uint64_t pending = 0;
    const std::string_view value = text(count.first, count.second);
    const std::size_t digit = std::min(value.find_first_not_of(" \t"), value.size());
    std::from_chars(value.data() + digit, value.data() + value.size(), pending);
    add("wait", "one more may be pending",
        fmt::format("{}{} {};", guard_, text(opcode_, count.first), pending + 1));
  }

  void ordered_access() {
    for (const char* order : {"acquire", "release", "acq_rel"}) {
      if (has(order)) add_opcode("order", "relaxed", opcode_with(order, "relaxed"));
    }
  }

  const ptx::Source& source_;
  std::vector<std::string_view> words_;
  std::vector<Mutation>& out_;
  std::uint32_t line_ = 0;
  std::size_t opcode_ = 0;
  std::size_t begin_ = 0;  ///< of the guard, or the opcode
  std::size_t after_opcode_ = 0;
  std::size_t end_ = 0;
  std::string guard_;
};

/// `replacement` with as many newlines as what it replaces.
std::string replaced(const std::string& ptx, const Mutation& mutation,
                     const std::string& replacement) {
  const auto from = ptx.begin() + static_cast<std::ptrdiff_t>(mutation.begin);
  const auto to = ptx.begin() + static_cast<std::ptrdiff_t>(mutation.end);
  const auto lines =
      static_cast<std::size_t>(std::count(from, to, '\n') - std::ranges::count(replacement, '\n'));
  return ptx.substr(0, mutation.begin) + replacement + std::string(lines, '\n') +
         ptx.substr(mutation.end);
}

}  // namespace

std::vector<Mutation> find_mutations(const std::string& ptx, const std::string& name,
                                     const std::string& entry) {
  auto source = std::make_shared<ptx::Source>();
  source->name = name;
  source->text = ptx;
  const ptx::Module module = ptx::parse(source);
  const ptx::Function* function = module.find_entry(entry);
  if (function == nullptr) {
    throw PtxError({name, 0, {}}, fmt::format("no entry '{}'", entry));
  }
  std::vector<Mutation> result;
  for (const ptx::Instruction& instruction : function->instructions) {
    Site(*source, instruction, result).find();
  }
  const ptx::DebugInfo& debug = source->debug_info();
  for (Mutation& mutation : result) {
    const ptx::SourcePosition position = debug.at(mutation.line);
    mutation.source_file = position.file;
    mutation.source_line = position.line;
    mutation.inlined_at = position.inlined_at;
  }
  return result;
}

std::string mutated(const std::string& ptx, const Mutation& mutation) {
  return replaced(ptx, mutation, mutation.replacement);
}

std::string with_trap(const std::string& ptx, const Mutation& mutation) {
  const std::size_t at = mutation.statement.starts_with('@') ? mutation.statement.find(' ') : 0;
  const std::string guard =
      mutation.statement.starts_with('@') ? mutation.statement.substr(0, at + 1) : "";
  return replaced(ptx, mutation, guard + "trap;");
}

}  // namespace mxfa::emu
