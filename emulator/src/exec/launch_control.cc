#include <array>
#include <bit>
#include <cstring>

#include "exec/handlers.h"
#include "exec/tasks.h"

/// clusterlaunchcontrol: a cluster that runs takes over one that has not begun. The response is
/// four words: the ctaid of the first CTA, and whether there was one.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;
using Response = std::array<std::uint32_t, 4>;

Response cancel(Cta& cta) {
  const std::optional<std::uint64_t> index = cta.cluster.progress.cancel_next();
  if (!index) return {};
  const Dim3 grid = cta.launch.cluster_grid();
  const Dim3& size = cta.launch.cluster;
  return {static_cast<std::uint32_t>(*index % grid[0]) * size[0],
          static_cast<std::uint32_t>(*index / grid[0] % grid[1]) * size[1],
          static_cast<std::uint32_t>(*index / grid[0] / grid[1]) * size[2], 1};
}

void respond(Cta& cta, std::uint32_t offset, std::uint32_t barrier, const Response& response) {
  std::array<std::byte, sizeof(Response)> bytes;
  std::memcpy(bytes.data(), response.data(), bytes.size());
  SharedView(cta).write(offset, bytes);
  complete_bytes({&cta, barrier}, bytes.size());
}

}  // namespace

void cancel_launch(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto address = [&](int k) {
      return (in.b >> k & 1u) != 0 ? c.row<const std::uint64_t>(in.op[k])[lane]
                                   : c.row<const std::uint32_t>(in.op[k])[lane];
    };
    const SharedPlace to = shared_place(cta, address(0));
    const SharedPlace barrier = shared_place(cta, address(1));
    if (to.cta != &cta || barrier.cta != &cta || to.offset % sizeof(Response) != 0) {
      warp.fail(in, 1u << lane, "expected aligned addresses in the CTA's own shared memory");
    }
    if (cta.saw_no_cluster) {
      warp.fail(in, 1u << lane, "try_cancel after one was seen to fail");
    }
    Task::Info info{cta.launch.kernel, in.line, "clusterlaunchcontrol.try_cancel"};
    info.issuer = {cta.rank, warp.index(), 1u << lane, in.line};
    info.observer = cta.launch.observer;
    if (info.observer != nullptr) {
      info.observed = info.observer->issue({OpKind::kToBarrier, warp, in, lane, barrier});
    }
    cta.async.push(std::make_unique<Task>(
        info, [&cta, all = in.a != 0, to = to.offset, barrier = barrier.offset] {
          const Response response = cancel(cta);
          if (!all) return respond(cta, to, barrier, response);
          for (const auto& other : cta.cluster.ctas) respond(*other, to, barrier, response);
        }));
    ++cta.cluster.progress.count;
  }
}

void query_cancel(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  const auto* responses = c.row<const Response>(in.op[1]);
  std::uint32_t canceled = 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (responses[lane][3] != 0) canceled |= 1u << lane;
  }
  if (in.a == 0) {
    if (canceled != mask) warp.cta().saw_no_cluster = true;
    return c.set_pred(in.op[0], canceled, mask);
  }
  if (canceled != mask) {
    warp.fail(in, mask & ~canceled, "get_first_ctaid of a request that failed");
  }
  const std::int32_t* rows = warp.cta().launch.kernel->lists.data() + in.extra;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::size_t i = 0; i < in.b; ++i) {
      c.row<std::uint32_t>(rows[i])[lane] = responses[lane][in.c + i];
    }
  }
}

}  // namespace mxfa::emu::exec
