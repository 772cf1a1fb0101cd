#pragma once

#include <cstdint>
#include <functional>

namespace mxfa::core {

/// Threads that parallel_for uses: the hardware's, unless set_num_threads() said otherwise.
int num_threads();
/// 0 restores the hardware's count.
void set_num_threads(int count);

/// Calls body(i) once for each i in [0, count), on several threads, in no particular order.
/// Results must not depend on the order. The first exception is rethrown after all bodies ended.
/// The threads are kept for the next call; a call from within a body, or beside another call,
/// starts its own.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);

}  // namespace mxfa::core
