#pragma once

#include <cstdint>
#include <unordered_map>

/// Where wgmma.fence must stand: between other uses of a register and its use by wgmma, and before
/// the first wgmma. PTX ISA 9.0, section 9.7.15.7.1. (Registers in flight are protected by the
/// interpreter itself, see ir/protect.h.)
namespace mxfa::emu::check {

class RegisterState {
 public:
  enum class Fault : std::uint8_t {
    kNone,
    kNoFence,       ///< accessed by an ordinary instruction since the last wgmma.fence
    kNoFirstFence,  ///< no wgmma.fence at all before
    kShape,         ///< used by wgmma of another shape since the last fence
  };
  struct Result {
    Fault fault = Fault::kNone;
    std::uint32_t line = 0;  ///< of the other access
  };

  void fence() { ++fences_; }
  /// An ordinary instruction names the register.
  void touch(std::uint32_t reg, std::uint32_t line) { registers_[reg].touched = {fences_, line}; }
  /// wgmma reads it.
  Result read(std::uint32_t reg);
  /// wgmma accumulates in it; instructions of one `shape` may follow each other.
  Result accumulate(std::uint32_t reg, std::uint64_t shape, std::uint32_t line);

 private:
  struct Access {
    std::uint64_t fences = 0;  ///< their count at the access
    std::uint32_t line = 0;    ///< 0: none
  };
  struct Register {
    Access touched;
    Access accumulated;
    std::uint64_t shape = 0;
  };
  bool since_fence(const Access& access) const {
    return access.line != 0 && access.fences == fences_;
  }
  std::unordered_map<std::uint32_t, Register> registers_;
  std::uint64_t fences_ = 0;
};

}  // namespace mxfa::emu::check
