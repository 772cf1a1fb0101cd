#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mxemu/check.h"
#include "mxemu/error.h"
#include "mxemu/memory.h"
#include "mxemu/trace.h"

/// Runs PTX kernels on the CPU. One Module is one PTX text; kernels see the GlobalMemory that it
/// was loaded into. Everything throws PtxError.
namespace mxfa::emu {

/// Who goes next. Every policy is legal behaviour of the hardware: a correct kernel gives the same
/// result under all of them.
enum class Policy : std::uint8_t {
  kRandom,    ///< warps and asynchronous work in any order
  kEarliest,  ///< asynchronous work completes as soon as it is issued
  kLatest,    ///< asynchronous work completes only when no warp can go on without it
  kLifo,      ///< the newest asynchronous work first, the last warps first
  kStarve,    ///< one warp of each block (picked by the seed) runs only when no other one can
  kTimed,     ///< side by side, as if each warp issued an instruction a tick; see mxemu/trace.h
};
/// All that a correct kernel must stand; kTimed is for pictures.
inline constexpr Policy kAllPolicies[] = {Policy::kRandom, Policy::kEarliest, Policy::kLatest,
                                          Policy::kLifo, Policy::kStarve};
/// "random", "earliest", ...
const char* policy_name(Policy policy);
std::optional<Policy> find_policy(std::string_view name);
/// "random, earliest, ...", with kTimed or without: for messages.
std::string policy_names(bool timed);

/// Arithmetic of floating-point matrix instructions.
enum class Fp8Mode : std::uint8_t {
  kExact,      ///< the exact sum, rounded once to nearest
  kHopper,     ///< as an H200: FP8 sums keep 13 bits below their largest term, others 25
  kBlackwell,  ///< as published for a B200: 25 bits, results truncated
};

struct LaunchOptions {
  std::uint64_t seed = 0;  ///< the same seed, policy and threads give the same interleaving
  Policy policy = Policy::kRandom;
  int threads = 1;                  ///< host threads
  int resident_clusters = 4;        ///< clusters that a host thread interleaves
  bool check_uninitialised = true;  ///< reads of bytes that nobody wrote are errors
  /// Diverged lanes meet again as soon as their paths join; off: only where instructions demand it.
  bool converge = true;
  Fp8Mode fp8 = Fp8Mode::kExact;
  /// Approximate functions of FP32 (ex2, lg2, rcp, rsqrt, sqrt, tanh, sin, cos, div) differ from
  /// the nearest value by up to the ISA's bound, as the seed says. Off: they are the nearest value.
  bool perturb = false;
  /// What the ISA does not promise, although programs that work on hardware rely on it, is an error
  /// and not a warning: a tcgen05.ld or .st whose address names lanes of another warp (the warp's
  /// own are used), a block that exits while a bulk store still reads its shared memory, a wgmma
  /// operand that starts inside of its swizzle's pattern with base offset 0.
  bool strict = false;
  /// Clusters that share an SM, and so its tensor memory; they must be resident together.
  int clusters_per_sm = 1;
  /// Warp instructions without any effect after which the program counts as stuck in a loop.
  std::uint64_t spin_budget = std::uint64_t{1} << 26;
  std::function<void(const std::string&)> print;  ///< receives printf's output; may be empty
  /// Receives, once each, what the ISA does not promise and practice relies on; may be empty.
  std::function<void(const std::string&)> warn;
  /// Switches the hazard checker on: what it finds is added here, also where the launch throws.
  /// The launch then runs on one host thread. Reads of bytes that nobody wrote are reported and
  /// the launch goes on.
  CheckReport* check = nullptr;
  /// With `check`, programmatic dependent launch. Launches never run side by side, so results do
  /// not show a missing griddepcontrol.wait: the checker does.
  /// Receives what this launch did to global memory, or null where nothing that depends on it may
  /// begin before it has ended, since no thread executed griddepcontrol.launch_dependents.
  std::shared_ptr<const GridFootprint>* footprint = nullptr;
  /// Of the launch before, which may still run while this one does.
  std::shared_ptr<const GridFootprint> overlapped;
  /// Records what happens when, also where the launch throws. The launch runs on one host thread.
  TraceReport* trace = nullptr;
};

struct LaunchConfig {
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  std::array<std::uint32_t, 3> block{1, 1, 1};
  std::array<std::uint32_t, 3> cluster{0, 0, 0};  ///< zeros: what the kernel asks for, else 1
  std::uint32_t dynamic_shared_bytes = 0;
};

struct LaunchStats {
  std::uint64_t warp_instructions = 0;
  std::uint64_t thread_instructions = 0;  ///< warp instructions times the lanes at them
};

struct ParamInfo {
  std::string name;
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

struct EntryInfo {
  std::string name;
  std::vector<ParamInfo> params;
  std::uint32_t shared_bytes = 0;    ///< static
  std::uint32_t local_bytes = 0;     ///< of one thread
  std::uint32_t register_bytes = 0;  ///< of one warp, in the emulator
  std::uint32_t instructions = 0;
  /// .maxntid, .reqntid and .reqnctapercluster; zeros where the text does not say.
  std::array<std::uint32_t, 3> max_threads{};
  std::array<std::uint32_t, 3> required_threads{};
  std::array<std::uint32_t, 3> cluster{};
  bool explicit_cluster = false;  ///< .explicitcluster: a launch must name a cluster size
};

/// Kernel arguments in the order of the parameters.
class Arguments {
 public:
  template <class T>
  Arguments& add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return add_bytes(&value, sizeof(T));
  }
  Arguments& add_bytes(const void* data, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    values_.emplace_back(begin, begin + bytes);
    return *this;
  }
  const std::vector<std::vector<std::byte>>& values() const { return values_; }

 private:
  std::vector<std::vector<std::byte>> values_;
};

class Module {
 public:
  /// Parses the text and places its variables. `memory` must outlive the module.
  Module(const std::string& ptx, const std::string& name, GlobalMemory& memory);
  ~Module();
  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;

  std::vector<std::string> entries() const;
  /// Makes the entry executable (the first time) and describes it.
  EntryInfo entry(const std::string& name) const;
  const std::string& target() const;
  /// Host address of a .global or .const variable of the text, null where there is none.
  std::byte* variable(const std::string& name) const;

  /// Throws where grid, block, cluster or shared memory are none that the entry can run with.
  void check_launch(const std::string& entry, const LaunchConfig& config) const;
  LaunchStats launch(const std::string& entry, const LaunchConfig& config,
                     const Arguments& arguments, const LaunchOptions& options = {}) const;
  /// With the parameter block as the driver lays it out.
  LaunchStats launch(const std::string& entry, const LaunchConfig& config,
                     std::span<const std::byte> params, const LaunchOptions& options = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A statement that the emulator cannot run.
struct LintFinding {
  std::uint32_t line = 0;
  std::string opcode;
  std::string reason;
};
/// Parses a text, looks up every opcode of every entry and checks the operands; of an entry whose
/// opcodes are all known, the first wrong operand is reported. Malformed text throws.
std::vector<LintFinding> lint(const std::string& ptx, const std::string& name);

}  // namespace mxfa::emu
