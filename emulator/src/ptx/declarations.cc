#include "ptx/declarations.h"

#include <bit>
#include <cstring>

namespace mxfa::emu::ptx {
namespace {

constexpr std::size_t kMaxInitBytes = std::size_t{1} << 28;

class VariableParser {
 public:
  VariableParser(TokenStream& tokens, ScopeStack& scopes, const DeclareVariables& how)
      : tokens_(tokens), scopes_(scopes), how_(how) {}

  void run(std::vector<Variable>& variables) {
    parse_attributes();
    do {
      Variable variable = parse_declarator();
      const Symbol symbol{Symbol::Kind::kVariable, static_cast<std::uint32_t>(variables.size()), 0,
                          how_.module_scope};
      if (!scopes_.declare(variable.name, symbol)) {
        tokens_.fail_at(variable.line, fmt::format("'{}' is declared twice", variable.name));
      }
      if (tokens_.accept('=')) parse_init(variable);
      variables.push_back(std::move(variable));
    } while (!how_.single && tokens_.accept(','));
  }

 private:
  void parse_attributes() {
    for (;;) {
      if (tokens_.accept(".align")) {
        align_ = static_cast<std::uint32_t>(tokens_.expect_integer("an alignment", 1u << 20));
        if (!std::has_single_bit(align_))
          tokens_.fail("expected an alignment that is a power of 2");
      } else if (tokens_.accept(".v2")) {
        vector_ = 2;
      } else if (tokens_.accept(".v4")) {
        vector_ = 4;
      } else if (tokens_.accept(".attribute")) {
        tokens_.expect('(');
        while (!tokens_.at_end() && !tokens_.peek().is(')')) tokens_.take();
        tokens_.expect(')');
      } else if (tokens_.peek().kind == TokenKind::kDirective && type_ == nullptr) {
        type_ = find_type(tokens_.peek().text.substr(1));
        if (type_ == nullptr || type_->bits < 8) tokens_.fail("expected a type");
        tokens_.take();
        if (tokens_.accept(".ptr")) parse_pointer_attributes();
      } else {
        break;
      }
    }
    if (type_ == nullptr) tokens_.fail("expected a type");
  }

  // What a pointer parameter points to: of no use to an interpreter.
  void parse_pointer_attributes() {
    for (;;) {
      if (tokens_.accept(".align")) {
        tokens_.expect_integer("an alignment", 1u << 20);
      } else if (tokens_.peek().kind == TokenKind::kDirective && space_of(tokens_.peek().text)) {
        tokens_.take();
      } else {
        return;
      }
    }
  }

  Variable parse_declarator() {
    Variable variable;
    variable.line = tokens_.peek().line;
    variable.name = tokens_.expect_word("a name");
    variable.space = how_.space;
    variable.type = type_;
    variable.align = std::max(align_, type_->bytes() * vector_);
    std::uint64_t bytes = std::uint64_t{type_->bytes()} * vector_;
    while (tokens_.accept('[')) {
      const std::uint64_t count =
          tokens_.peek().is(']') ? 0 : tokens_.expect_integer("an array size", kMaxVariableBytes);
      tokens_.expect(']');
      bytes =
          count == 0 || bytes <= kMaxVariableBytes / count ? bytes * count : kMaxVariableBytes + 1;
    }
    if (bytes > kMaxVariableBytes) tokens_.fail_at(variable.line, "variable too large");
    variable.bytes = bytes;
    return variable;
  }

  void parse_init(Variable& variable) {
    if (how_.space != Space::kGlobal && how_.space != Space::kConst) {
      tokens_.fail("only .global and .const variables have initialisers");
    }
    variable.has_init = true;
    parse_init_list(variable, 0);
    if (variable.init.size() > variable.bytes) {
      tokens_.fail_at(variable.line, "initialiser longer than its variable");
    }
  }

  void parse_init_list(Variable& variable, std::size_t depth) {
    if (depth > 8) tokens_.fail("initialiser nested too deeply");
    if (!tokens_.accept('{')) return parse_init_value(variable);
    if (tokens_.accept('}')) return;
    do {
      parse_init_list(variable, depth + 1);
    } while (tokens_.accept(','));
    tokens_.expect('}');
  }

  void append(Variable& variable, std::uint64_t value) {
    if (variable.init.size() >= kMaxInitBytes) tokens_.fail("initialiser too long");
    for (std::uint32_t i = 0; i < type_->bytes(); ++i) {
      variable.init.push_back(i < 8 ? static_cast<std::byte>(value >> (8 * i)) : std::byte{0});
    }
  }

  void parse_init_value(Variable& variable) {
    const bool negative = tokens_.accept('-');
    const Token& token = tokens_.peek();
    if (token.kind == TokenKind::kInteger) {
      append(variable, negative ? 0 - token.value : token.value);
      tokens_.take();
    } else if (token.kind == TokenKind::kFloat32 || token.kind == TokenKind::kFloat64) {
      append(variable, float_bits(token, negative));
      tokens_.take();
    } else if (token.kind == TokenKind::kWord && !negative) {
      parse_init_pointer(variable);
    } else {
      tokens_.fail("expected an initial value");
    }
  }

  std::uint64_t float_bits(const Token& token, bool negative) {
    const double value =
        token.kind == TokenKind::kFloat64
            ? std::bit_cast<double>(token.value)
            : static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(token.value)));
    if (type_->bits == 64) return std::bit_cast<std::uint64_t>(negative ? -value : value);
    if (type_->bits != 32) tokens_.fail("float initialiser of a type that is neither f32 nor f64");
    const auto single = static_cast<float>(value);
    return std::bit_cast<std::uint32_t>(negative ? -single : single);
  }

  void parse_init_pointer(Variable& variable) {
    InitPointer pointer;
    pointer.offset = variable.init.size();
    pointer.generic = tokens_.accept("generic");
    if (pointer.generic) tokens_.expect('(');
    const auto symbol = scopes_.find(tokens_.peek().text);
    if (!symbol || symbol->kind != Symbol::Kind::kVariable || !symbol->module_scope) {
      tokens_.fail("expected a module variable");
    }
    tokens_.take();
    pointer.variable = symbol->index;
    if (pointer.generic) tokens_.expect(')');
    if (tokens_.accept('+')) {
      pointer.addend = static_cast<std::int64_t>(tokens_.expect_integer("an offset", 1u << 31));
    }
    if (type_->bits != 64) tokens_.fail("expected a 64-bit type for a pointer");
    append(variable, 0);
    variable.pointers.push_back(pointer);
  }

  TokenStream& tokens_;
  ScopeStack& scopes_;
  const DeclareVariables& how_;
  std::uint32_t align_ = 1;
  std::uint32_t vector_ = 1;
  const Type* type_ = nullptr;
};

}  // namespace

std::optional<Space> space_of(std::string_view directive) {
  if (directive == ".global") return Space::kGlobal;
  if (directive == ".const") return Space::kConst;
  if (directive == ".shared") return Space::kShared;
  if (directive == ".local") return Space::kLocal;
  if (directive == ".param") return Space::kParam;
  return {};
}

void parse_variables(TokenStream& tokens, ScopeStack& scopes, std::vector<Variable>& variables,
                     const DeclareVariables& how) {
  VariableParser(tokens, scopes, how).run(variables);
}

}  // namespace mxfa::emu::ptx
