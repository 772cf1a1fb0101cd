#include <bit>
#include <map>

#include "ptx/declarations.h"

namespace mxfa::emu::ptx {
namespace {

constexpr std::size_t kMaxTargets = 1u << 16;

class BodyParser {
 public:
  BodyParser(TokenStream& tokens, ScopeStack& scopes, Function& function)
      : tokens_(tokens), scopes_(scopes), function_(function) {}

  void run() {
    open_scope();
    const std::size_t outer = scopes_.depth() - 1;
    while (scopes_.depth() > outer) {
      if (tokens_.at_end()) tokens_.fail("function without '}'");
      statement();
    }
    if (!unresolved_.empty()) {
      const LabelUse& use = unresolved_.front();
      tokens_.fail_at(use.line, fmt::format("unknown name '{}'", use.name));
    }
  }

 private:
  struct LabelUse {
    std::string_view name;
    std::uint32_t line;
    std::size_t instruction;
    std::size_t operand;
  };

  void open_scope() {
    if (scopes_.depth() >= kMaxScopeDepth) tokens_.fail("scopes nested too deeply");
    scopes_.push();
    first_use_.push_back(unresolved_.size());
  }

  // Labels may be used before they are defined, so uses wait for the end of each scope around them.
  void close_scope() {
    std::size_t kept = first_use_.back();
    for (std::size_t i = first_use_.back(); i < unresolved_.size(); ++i) {
      const LabelUse use = unresolved_[i];
      if (const Symbol* label = scopes_.find_label_here(use.name)) {
        function_.instructions[use.instruction].operands[use.operand].index = label->index;
      } else {
        unresolved_[kept++] = use;
      }
    }
    unresolved_.resize(kept);
    first_use_.pop_back();
    scopes_.pop();
  }

  void statement() {
    const Token& token = tokens_.peek();
    if (tokens_.accept('{')) return open_scope();
    if (tokens_.accept('}')) return close_scope();
    if (tokens_.accept(';')) return;
    if (token.kind == TokenKind::kDirective) return directive();
    if (token.kind == TokenKind::kWord && tokens_.peek(1).is(':')) return label();
    if (token.kind == TokenKind::kWord || token.is('@')) return instruction();
    tokens_.fail("expected a statement");
  }

  void directive() {
    if (tokens_.peek().is(".loc") || tokens_.peek().is(".file")) return tokens_.skip_line();
    if (tokens_.accept(".pragma")) {
      if (tokens_.take().kind != TokenKind::kString) tokens_.fail("expected a string");
    } else if (tokens_.accept(".reg")) {
      registers();
    } else if (const auto space = space_of(tokens_.peek().text);
               space == Space::kShared || space == Space::kLocal || space == Space::kParam) {
      tokens_.take();
      parse_variables(tokens_, scopes_, function_.variables, {*space, false, false});
    } else {
      tokens_.fail("unknown directive");
    }
    tokens_.expect(';');
  }

  void registers() {
    const Type* type = tokens_.peek().kind == TokenKind::kDirective
                           ? find_type(tokens_.peek().text.substr(1))
                           : nullptr;
    if (type == nullptr || type->bits == 8 || type->name == "b1") {
      tokens_.fail("expected a register type");
    }
    tokens_.take();
    do {
      const std::string_view name = tokens_.expect_word("a register name");
      std::uint32_t count = 1;
      const bool range = tokens_.accept('<');
      if (range) {
        count = static_cast<std::uint32_t>(tokens_.expect_integer("a count", kMaxRegisters));
        tokens_.expect('>');
      }
      const auto first = static_cast<std::uint32_t>(function_.registers.size());
      if (count > kMaxRegisters - first) tokens_.fail("too many registers");
      const auto kind = range ? Symbol::Kind::kRange : Symbol::Kind::kRegister;
      if (!scopes_.declare(name, {kind, first, count, false})) {
        tokens_.fail(fmt::format("'{}' is declared twice", name));
      }
      for (std::uint32_t i = 0; i < count; ++i) function_.registers.push_back({type, name, i});
    } while (tokens_.accept(','));
  }

  // NAME: .branchtargets LABEL, LABEL;
  void branch_targets(std::string_view name) {
    const auto [table, fresh] = branch_targets_.try_emplace(name);
    if (!fresh) tokens_.fail(fmt::format("'{}' is declared twice", name));
    do {
      if (table->second.size() >= kMaxOperands) tokens_.fail("too many branch targets");
      table->second.push_back(tokens_.expect_word("a label"));
    } while (tokens_.accept(','));
    tokens_.expect(';');
  }

  // brx.idx INDEX, NAME: the operands become the index and the labels.
  void indexed_branch(Instruction& result) {
    result.operands.push_back(operand(0));
    reject_label(result.operands.back());
    tokens_.expect(',');
    const std::string_view name = tokens_.expect_word("a list of branch targets");
    const auto table = branch_targets_.find(name);
    if (table == branch_targets_.end()) tokens_.fail(fmt::format("unknown name '{}'", name));
    targets_ += table->second.size();
    if (targets_ > kMaxTargets) tokens_.fail("too many branch targets in a function");
    for (const std::string_view label : table->second) {
      Operand& target = result.operands.emplace_back();
      target.kind = Operand::Kind::kLabel;
      target.name = label;
      remember_label(result);
    }
  }

  void label() {
    const std::string_view name = tokens_.take().text;
    if (tokens_.peek(1).is(".branchtargets")) {
      tokens_.expect(':');
      tokens_.take();
      return branch_targets(name);
    }
    const auto index = static_cast<std::uint32_t>(function_.instructions.size());
    if (!scopes_.declare(name, {Symbol::Kind::kLabel, index, 0, false})) {
      tokens_.fail(fmt::format("'{}' is declared twice", name));
    }
    tokens_.expect(':');
  }

  void instruction() {
    Instruction result;
    result.line = tokens_.peek().line;
    if (tokens_.accept('@')) {
      result.guard_negated = tokens_.accept('!');
      const auto symbol = scopes_.find(tokens_.peek().text);
      if (!symbol || symbol->kind != Symbol::Kind::kRegister ||
          function_.registers[symbol->index].type->kind != TypeKind::kPred) {
        tokens_.fail("expected a predicate");
      }
      tokens_.take();
      result.guard = static_cast<std::int32_t>(symbol->index);
    }
    result.opcode = tokens_.expect_word("an opcode");
    branch_ = result.opcode == "bra" || result.opcode == "bra.uni";
    operands_ = 0;
    line_ = result.line;
    if (result.opcode.starts_with("brx.idx")) indexed_branch(result);
    while (!tokens_.peek().is(';')) {
      if (!result.operands.empty()) tokens_.expect(',');
      line_ = result.line;
      result.operands.push_back(operand(0));
      remember_label(result);
    }
    tokens_.expect(';');
    function_.instructions.push_back(std::move(result));
  }

  void remember_label(Instruction& instruction) {
    const Operand& last = instruction.operands.back();
    if (last.kind != Operand::Kind::kLabel) return;
    unresolved_.push_back({last.name, instruction.line, function_.instructions.size(),
                           instruction.operands.size() - 1});
  }

  Operand operand(std::size_t depth) {
    if (++operands_ > kMaxOperands) tokens_.fail("too many operands");
    if (depth > 4) tokens_.fail("operand nested too deeply");
    Operand result;
    if (tokens_.accept('{')) return list('}', Operand::Kind::kVector, depth);
    if (tokens_.accept('(')) return list(')', Operand::Kind::kVector, depth);
    if (tokens_.accept('[')) return address(depth);
    if (tokens_.accept('!')) {
      result = operand(depth + 1);
      if (result.kind != Operand::Kind::kRegister || result.negated) {
        tokens_.fail("expected a predicate after '!'");
      }
      result.negated = true;
      return result;
    }
    if (tokens_.peek().kind == TokenKind::kWord) {
      result = named(depth);
    } else {
      result = number();
    }
    if (tokens_.accept('|')) {
      Operand pair;
      pair.kind = Operand::Kind::kPair;
      pair.parts.push_back(std::move(result));
      pair.parts.push_back(operand(depth + 1));
      return pair;
    }
    return result;
  }

  Operand list(char close, Operand::Kind kind, std::size_t depth) {
    Operand result;
    result.kind = kind;
    if (tokens_.accept(close)) return result;
    do {
      result.parts.push_back(operand(depth + 1));
      reject_label(result.parts.back());
    } while (tokens_.accept(','));
    tokens_.expect(close);
    return result;
  }

  Operand address(std::size_t depth) {
    Operand result;
    result.kind = Operand::Kind::kAddress;
    result.parts.push_back(operand(depth + 1));
    reject_label(result.parts.back());
    if (tokens_.accept('+')) {
      result.value = signed_integer();
    } else if (tokens_.peek().is('-')) {
      result.value = signed_integer();
    }
    while (tokens_.accept(',')) {
      result.parts.push_back(operand(depth + 1));
      reject_label(result.parts.back());
    }
    tokens_.expect(']');
    return result;
  }

  void reject_label(const Operand& operand) const {
    if (operand.kind == Operand::Kind::kLabel) {
      tokens_.fail_at(line_, fmt::format("unknown name '{}'", operand.name));
    }
  }

  std::int64_t signed_integer() {
    const bool negative = tokens_.accept('-');
    const std::uint64_t value = tokens_.expect_integer("an integer", ~std::uint64_t{0});
    return static_cast<std::int64_t>(negative ? 0 - value : value);
  }

  Operand number() {
    Operand result;
    const bool negative = tokens_.accept('-');
    const Token& token = tokens_.peek();
    if (token.kind == TokenKind::kInteger) {
      result.kind = Operand::Kind::kInteger;
      result.value = static_cast<std::int64_t>(negative ? 0 - token.value : token.value);
    } else if (token.kind == TokenKind::kFloat32) {
      result.kind = Operand::Kind::kFloat32;
      result.value = static_cast<std::int64_t>(token.value ^ (negative ? 0x80000000u : 0u));
    } else if (token.kind == TokenKind::kFloat64) {
      result.kind = Operand::Kind::kFloat64;
      result.value = std::bit_cast<std::int64_t>(
          token.value ^ (negative ? std::uint64_t{1} << 63 : std::uint64_t{0}));
    } else {
      tokens_.fail("expected an operand");
    }
    tokens_.take();
    return result;
  }

  Operand named(std::size_t depth) {
    Operand result;
    result.name = tokens_.take().text;
    if (result.name == "_") return result;
    const auto symbol = branch_ && depth == 0 ? std::optional<Symbol>{} : scopes_.find(result.name);
    if (!symbol || symbol->kind == Symbol::Kind::kLabel) {
      result.kind = result.name[0] == '%' ? Operand::Kind::kSpecial : Operand::Kind::kLabel;
      return result;
    }
    result.index = symbol->index;
    result.module_scope = symbol->module_scope;
    switch (symbol->kind) {
      case Symbol::Kind::kRegister:
        result.kind = Operand::Kind::kRegister;
        break;
      case Symbol::Kind::kVariable:
        result.kind = Operand::Kind::kVariable;
        if (depth == 0 && tokens_.accept('+')) result.value = signed_integer();
        break;
      case Symbol::Kind::kFunction:
        result.kind = Operand::Kind::kFunction;
        break;
      default:
        tokens_.fail_at(line_, fmt::format("'{}' names a range of registers", result.name));
    }
    return result;
  }

  TokenStream& tokens_;
  ScopeStack& scopes_;
  Function& function_;
  std::vector<LabelUse> unresolved_;
  std::map<std::string_view, std::vector<std::string_view>> branch_targets_;
  std::vector<std::size_t> first_use_;
  std::size_t targets_ = 0;  ///< of all indexed branches
  std::uint32_t line_ = 0;
  std::size_t operands_ = 0;
  bool branch_ = false;
};

}  // namespace

void parse_body(TokenStream& tokens, ScopeStack& scopes, Function& function) {
  BodyParser(tokens, scopes, function).run();
}

}  // namespace mxfa::emu::ptx
