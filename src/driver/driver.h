#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "driver/functions.h"
#include "mxfa/error.h"

/// The seam between host code and the machine: the CUDA driver API through a table of function
/// pointers, filled at run time from libcuda.so.1 or from the emulator's library of the same calls.
namespace mxfa::driver {

enum class DriverKind {
  kCuda,      ///< libcuda.so.1: a GPU
  kEmulator,  ///< libmxemu.so: no GPU needed
};

struct DriverOptions {
  DriverKind kind = DriverKind::kCuda;
  /// Architecture that the emulator pretends to be: sm_90a, sm_100a or sm_103a. Unused by kCuda.
  std::string arch = "sm_90a";
  /// The library to open; empty = the usual name by the loader's search path.
  std::string library;
};

class Driver {
 public:
  /// Opens the library, resolves every call and initialises it. Throws Error(kDevice) that names
  /// what is missing: the library, a call, or a device.
  explicit Driver(const DriverOptions& options);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const FunctionTable& calls() const { return table_; }
  DriverKind kind() const { return options_.kind; }
  int device_count() const;
  /// As the driver reports it, 13000 for CUDA 13.0.
  int version() const;

  /// Throws Error(kDevice) "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)" unless success.
  void check(CUresult result, std::string_view call,
             SourceLocation where = SourceLocation::current()) const;

 private:
  struct LibraryCloser {
    void operator()(void* handle) const;
  };

  DriverOptions options_;
  std::unique_ptr<void, LibraryCloser> library_;
  FunctionTable table_;
};

}  // namespace mxfa::driver
