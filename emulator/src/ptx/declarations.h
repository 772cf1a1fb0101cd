#pragma once

#include "ptx/module.h"
#include "ptx/scope.h"
#include "ptx/token_stream.h"

/// The parts of the parser that module level and function bodies share.
namespace mxfa::emu::ptx {

inline constexpr std::uint32_t kMaxRegisters = 1u << 20;
inline constexpr std::size_t kMaxScopeDepth = 64;
inline constexpr std::size_t kMaxOperands = 1024;
inline constexpr std::uint64_t kMaxVariableBytes = std::uint64_t{1} << 36;

/// The state space that a directive names, if it names one.
std::optional<Space> space_of(std::string_view directive);

/// Parses "[.align n] .type name[n] [= init] {, name ...}" after the space directive and declares
/// the names; the caller consumes the ';' or ',' that follows. `single` stops after one name.
struct DeclareVariables {
  Space space;
  bool module_scope;
  bool single;
};
void parse_variables(TokenStream& tokens, ScopeStack& scopes, std::vector<Variable>& variables,
                     const DeclareVariables& how);

/// Parses the body of a function after its '{', up to and including the matching '}'.
void parse_body(TokenStream& tokens, ScopeStack& scopes, Function& function);

}  // namespace mxfa::emu::ptx
