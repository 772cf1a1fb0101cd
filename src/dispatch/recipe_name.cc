#include "dispatch/recipe_name.h"

#include "core/check.h"

namespace mxfa::dispatch {

std::string_view recipe_name(attention::Recipe recipe) {
  return recipe == attention::Recipe::kHopper ? "hopper" : "blackwell";
}

attention::Recipe recipe_of(std::string_view name) {
  for (const auto recipe : {attention::Recipe::kHopper, attention::Recipe::kBlackwell}) {
    if (name == recipe_name(recipe)) return recipe;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("recipe: expected hopper or blackwell, got '{}'", name));
}

}  // namespace mxfa::dispatch
