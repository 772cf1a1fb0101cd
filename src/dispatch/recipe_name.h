#pragma once

#include <string_view>

#include "mxfa/attention.h"

/// Recipes by their names in commands and records.
namespace mxfa::dispatch {

/// "hopper" or "blackwell".
std::string_view recipe_name(attention::Recipe recipe);
/// Throws Error that names the argument "recipe" where no recipe has the name.
attention::Recipe recipe_of(std::string_view name);

}  // namespace mxfa::dispatch
