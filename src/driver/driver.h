#pragma once

#include <cstdint>
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

/// The machine that the emulator pretends to be. It is the process's: a Driver that asks for
/// another arch or size while a device is in use is refused.
struct EmulatorOptions {
  int device_count = 1;
  int multiprocessors = 0;        ///< SMs of a device; 0: as many as the architecture has
  std::string policy = "random";  ///< order of what is not ordered: random, earliest, latest, lifo,
                                  ///< starve, timed
  std::uint64_t seed = 0;         ///< the same seed and policy replay, on one thread
  int threads = 1;                ///< host threads of a launch
  bool poison_memory = true;      ///< fresh device memory is 0xFF, not zero
  std::string arithmetic = "native";  ///< of matrix instructions: native, exact, hopper, blackwell
  bool strict = true;  ///< what hardware is known to do, but the ISA does not promise, is a fault
  std::string trace_folder;         ///< for a timeline of each launch; empty: none
  bool check_hazards = false;       ///< race checker; several times slower
  bool check_uninitialised = true;  ///< a kernel's read of bytes that nobody wrote is a fault
};

struct DriverOptions {
  DriverKind kind = DriverKind::kCuda;
  /// Architecture that the emulator pretends to be: sm_90a, sm_100a or sm_103a. Unused by kCuda.
  std::string arch = "sm_90a";
  EmulatorOptions emulator;  ///< unused by kCuda
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

  /// Throws Error(kDevice) "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)" unless success;
  /// the emulator adds what it found: which kernel, line, thread and access.
  void check(CUresult result, std::string_view call,
             SourceLocation where = SourceLocation::current()) const;

 private:
  struct LibraryCloser {
    void operator()(void* handle) const;
  };

  void configure_emulator(const std::string& library) const;
  /// The library's call of this name; null where it has none.
  template <class Call>
  Call find(const char* name) const;

  DriverOptions options_;
  std::unique_ptr<void, LibraryCloser> library_;
  FunctionTable table_;
  CUresult (*get_report_)(const char** text) = nullptr;  ///< of the emulator
};

}  // namespace mxfa::driver
