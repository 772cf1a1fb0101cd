#include "ir/special_registers.h"

#include <algorithm>
#include <array>

namespace mxfa::emu::ir {
namespace {

using enum exec::SpecialRegister;
struct Entry {
  std::string_view name;
  SpecialRegisterInfo info;
};
constexpr auto kEntries = std::to_array<Entry>({
    {"%tid.x", {kTidX, 32}},
    {"%tid.y", {kTidY, 32}},
    {"%tid.z", {kTidZ, 32}},
    {"%ntid.x", {kNtidX, 32}},
    {"%ntid.y", {kNtidY, 32}},
    {"%ntid.z", {kNtidZ, 32}},
    {"%ctaid.x", {kCtaidX, 32}},
    {"%ctaid.y", {kCtaidY, 32}},
    {"%ctaid.z", {kCtaidZ, 32}},
    {"%nctaid.x", {kNctaidX, 32}},
    {"%nctaid.y", {kNctaidY, 32}},
    {"%nctaid.z", {kNctaidZ, 32}},
    {"%laneid", {kLaneId, 32}},
    {"%warpid", {kWarpId, 32}},
    {"%nwarpid", {kNwarpId, 32}},
    {"%smid", {kSmId, 32}},
    {"%nsmid", {kNsmId, 32}},
    {"%gridid", {kGridId, 64}},
    {"%clock", {kClock, 32}},
    {"%clock_hi", {kClockHi, 32}},
    {"%clock64", {kClock64, 64}},
    {"%globaltimer", {kGlobalTimer, 64}},
    {"%globaltimer_lo", {kGlobalTimerLo, 32}},
    {"%globaltimer_hi", {kGlobalTimerHi, 32}},
    {"%lanemask_eq", {kLanemaskEq, 32}},
    {"%lanemask_le", {kLanemaskLe, 32}},
    {"%lanemask_lt", {kLanemaskLt, 32}},
    {"%lanemask_ge", {kLanemaskGe, 32}},
    {"%lanemask_gt", {kLanemaskGt, 32}},
    {"%clusterid.x", {kClusteridX, 32}},
    {"%clusterid.y", {kClusteridY, 32}},
    {"%clusterid.z", {kClusteridZ, 32}},
    {"%nclusterid.x", {kNclusteridX, 32}},
    {"%nclusterid.y", {kNclusteridY, 32}},
    {"%nclusterid.z", {kNclusteridZ, 32}},
    {"%cluster_ctaid.x", {kClusterCtaidX, 32}},
    {"%cluster_ctaid.y", {kClusterCtaidY, 32}},
    {"%cluster_ctaid.z", {kClusterCtaidZ, 32}},
    {"%cluster_nctaid.x", {kClusterNctaidX, 32}},
    {"%cluster_nctaid.y", {kClusterNctaidY, 32}},
    {"%cluster_nctaid.z", {kClusterNctaidZ, 32}},
    {"%cluster_ctarank", {kClusterCtarank, 32}},
    {"%cluster_nctarank", {kClusterNctarank, 32}},
    {"%dynamic_smem_size", {kDynamicSmemSize, 32}},
    {"%total_smem_size", {kTotalSmemSize, 32}},
});

}  // namespace

std::optional<SpecialRegisterInfo> find_special_register(std::string_view name) {
  const auto* it = std::ranges::find(kEntries, name, &Entry::name);
  if (it == kEntries.end()) return {};
  return it->info;
}

}  // namespace mxfa::emu::ir
