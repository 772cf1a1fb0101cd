#pragma once

#include <cuda.h>
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <new>
#include <string>

/// What every exported call is wrapped in: nothing leaves it but an error code and a report.
namespace mxfa::emu::driver {

struct State;

/// Ends a call with an error code; `report` says in words what was wrong.
struct CallError {
  CUresult code;
  std::string report;
};

[[noreturn]] inline void fail(CUresult code, std::string report) {
  throw CallError{code, std::move(report)};
}
inline void require(bool condition, const char* report, CUresult code = CUDA_ERROR_INVALID_VALUE) {
  if (!condition) fail(code, report);
}

/// The process's only state; it lives until the process ends, as a driver does.
State& state();
std::mutex& state_mutex();
/// Of the calling thread's last call.
std::string& report();
/// Throws CUDA_ERROR_NOT_INITIALIZED before cuInit.
void require_initialised(const State& s);

/// Runs `body(State&)` under the lock and turns what it throws into an error code.
template <class Body>
CUresult call_uninitialised(const Body& body) noexcept {
  try {
    const std::lock_guard lock(state_mutex());
    report().clear();
    body(state());
    return CUDA_SUCCESS;
  } catch (const CallError& error) {
    report() = error.report;
    return error.code;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    report() = error.what();
    return CUDA_ERROR_UNKNOWN;
  }
}

template <class Body>
CUresult call(const Body& body) noexcept {
  return call_uninitialised([&](State& s) {
    require_initialised(s);
    body(s);
  });
}

}  // namespace mxfa::emu::driver
