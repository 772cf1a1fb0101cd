#include <algorithm>

#include "ptx/declarations.h"
#include "ptx/module.h"

namespace mxfa::emu::ptx {
namespace {

class ModuleParser {
 public:
  explicit ModuleParser(std::shared_ptr<const Source> source) : tokens_(*source) {
    module_.source = std::move(source);
  }

  Module run() {
    parse_header();
    while (!tokens_.at_end()) parse_item();
    return std::move(module_);
  }

 private:
  void parse_header() {
    if (!tokens_.accept(".version")) tokens_.fail("expected .version");
    if (tokens_.peek().kind != TokenKind::kFloat64) tokens_.fail("expected a version like 9.0");
    module_.version = tokens_.take().text;
    if (!tokens_.accept(".target")) tokens_.fail("expected .target");
    module_.target = tokens_.expect_word("a target");
    while (tokens_.accept(',')) tokens_.expect_word("a target option");
    if (tokens_.accept(".address_size") && tokens_.expect_integer("an address size", 64) != 64) {
      tokens_.fail("expected .address_size 64");
    }
  }

  void parse_item() {
    if (tokens_.peek().is(".file") || tokens_.peek().is(".loc")) return tokens_.skip_line();
    if (tokens_.peek().is(".section")) return skip_section();
    if (tokens_.accept(".pragma")) {
      if (tokens_.take().kind != TokenKind::kString) tokens_.fail("expected a string");
      return tokens_.expect(';');
    }
    while (tokens_.accept(".visible") || tokens_.accept(".extern") || tokens_.accept(".weak") ||
           tokens_.accept(".common")) {
    }
    if (tokens_.peek().is(".entry") || tokens_.peek().is(".func")) return parse_function();
    const auto space = tokens_.peek().kind == TokenKind::kDirective ? space_of(tokens_.peek().text)
                                                                    : std::optional<Space>{};
    if (!space || *space == Space::kParam || *space == Space::kLocal) {
      tokens_.fail("expected a declaration");
    }
    tokens_.take();
    parse_variables(tokens_, scopes_, module_.variables, {*space, true, false});
    tokens_.expect(';');
  }

  // Debug information: ".section name { ... }".
  void skip_section() {
    while (!tokens_.at_end() && !tokens_.peek().is('{')) tokens_.take();
    tokens_.expect('{');
    for (std::size_t depth = 1; depth > 0;) {
      if (tokens_.at_end()) tokens_.fail("section without end");
      const Token& token = tokens_.take();
      if (token.is('{')) ++depth;
      if (token.is('}')) --depth;
    }
  }

  void parse_function() {
    Function function;
    function.line = tokens_.peek().line;
    function.is_entry = tokens_.take().is(".entry");
    scopes_.push();
    if (!function.is_entry && tokens_.peek().is('(')) parse_params(function);
    function.name = tokens_.expect_word("a function name");
    if (tokens_.peek().is('(')) parse_params(function);
    parse_directives(function);
    if (!tokens_.accept(';')) {
      tokens_.expect('{');
      function.has_body = true;
      parse_body(tokens_, scopes_, function);
    }
    scopes_.pop();
    declare(std::move(function));
  }

  // A prototype may come before the definition, which then takes its place.
  void declare(Function function) {
    const auto it = std::ranges::find(module_.functions, function.name, &Function::name);
    if (it != module_.functions.end()) {
      if (it->has_body && function.has_body) {
        tokens_.fail_at(function.line, fmt::format("'{}' is defined twice", function.name));
      }
      if (function.has_body) *it = std::move(function);
      return;
    }
    const auto index = static_cast<std::uint32_t>(module_.functions.size());
    if (!scopes_.declare(function.name, {Symbol::Kind::kFunction, index, 0, true})) {
      tokens_.fail_at(function.line, fmt::format("'{}' is declared twice", function.name));
    }
    module_.functions.push_back(std::move(function));
  }

  void parse_params(Function& function) {
    tokens_.expect('(');
    if (tokens_.accept(')')) return;
    do {
      if (tokens_.peek().is(".reg")) tokens_.fail("register parameters are not supported");
      if (!tokens_.accept(".param")) tokens_.fail("expected .param");
      parse_variables(tokens_, scopes_, function.variables, {Space::kParam, false, true});
    } while (tokens_.accept(','));
    tokens_.expect(')');
    function.num_params = static_cast<std::uint32_t>(function.variables.size());
  }

  void parse_three(std::array<std::uint32_t, 3>& values) {
    values = {1, 1, 1};
    for (std::size_t i = 0; i < 3; ++i) {
      values[i] = static_cast<std::uint32_t>(tokens_.expect_integer("a size", 1u << 31));
      if (!tokens_.accept(',')) return;
    }
  }

  void parse_directives(Function& function) {
    for (;;) {
      if (tokens_.accept(".maxntid")) {
        parse_three(function.max_threads);
      } else if (tokens_.accept(".reqntid")) {
        parse_three(function.required_threads);
      } else if (tokens_.accept(".reqnctapercluster")) {
        parse_three(function.cluster);
      } else if (tokens_.accept(".explicitcluster")) {
        function.explicit_cluster = true;
      } else if (tokens_.accept(".minnctapersm")) {
        function.min_blocks =
            static_cast<std::uint32_t>(tokens_.expect_integer("a count", 1u << 31));
      } else if (tokens_.accept(".maxnctapersm") || tokens_.accept(".maxclusterrank")) {
        tokens_.expect_integer("a count", 1u << 31);
      } else if (tokens_.accept(".maxnreg")) {
        function.max_registers =
            static_cast<std::uint32_t>(tokens_.expect_integer("a register count", 1024));
      } else if (!tokens_.accept(".noreturn") && !tokens_.accept(".blocksareclusters")) {
        return;
      }
    }
  }

  TokenStream tokens_;
  ScopeStack scopes_;
  Module module_;
};

}  // namespace

const Function* Module::find_entry(std::string_view name) const {
  const auto it = std::ranges::find_if(
      functions, [&](const Function& f) { return f.is_entry && f.has_body && f.name == name; });
  return it == functions.end() ? nullptr : &*it;
}

Module parse(std::shared_ptr<const Source> source) { return ModuleParser(std::move(source)).run(); }

}  // namespace mxfa::emu::ptx
