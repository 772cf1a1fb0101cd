#include "dispatch/gpu/architectures.h"

#include <algorithm>
#include <string>

#include "dispatch/refuse.h"
#include "kernels/sm100/forward/launch.h"
#include "kernels/sm90/forward/launch.h"

namespace mxfa::dispatch {
namespace {

const Architecture kArchitectures[] = {
    {.arch = "sm_90a",
     .recipe = attention::Recipe::kHopper,
     .images = sm90::kernel_images,
     .forward = kSm90Forward,
     .backward = &kSm90Backward},
    {.arch = "sm_100a",
     .recipe = attention::Recipe::kBlackwell,
     .images = sm100::kernel_images,
     .forward = kSm100Forward},
    {.arch = "sm_103a",
     .recipe = attention::Recipe::kBlackwell,
     .images = sm100::kernel_images,
     .forward = kSm100Forward},
};

const Architecture& named_architecture(std::string_view arch, std::string_view call) {
  const Architecture* const found = find_architecture(arch);
  if (found != nullptr) return *found;
  std::string known;
  for (const Architecture& one : kArchitectures) {
    known += known.empty() ? "" : ", ";
    known += one.arch;
  }
  unsupported("device", fmt::format("an architecture that has {} ({})", call, known), arch);
}

}  // namespace

const Architecture* find_architecture(std::string_view arch) {
  const auto* const found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                         [&](const Architecture& one) { return one.arch == arch; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

const Architecture& expect_architecture(const attention::Options& options, std::string_view call) {
  const Architecture& own = named_architecture(options.device->arch(), call);
  if (options.recipe != own.recipe) {
    unsupported("recipe", fmt::format("that of {}, native_recipe()", own.arch), "another");
  }
  return own;
}

}  // namespace mxfa::dispatch

mxfa::attention::Recipe mxfa::attention::native_recipe(const Device& device) {
  return dispatch::named_architecture(device.arch(), "attention").recipe;
}
