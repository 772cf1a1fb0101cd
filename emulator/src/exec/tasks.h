#pragma once

#include <functional>
#include <span>
#include <string>

#include "exec/observer.h"
#include "model/tma.h"

/// What asynchronous instructions queue, and the memory as their models see it.
namespace mxfa::emu::exec {

/// An operation in flight, made of closures. Errors of the models gain the instruction's line.
class Task : public async::AsyncOp {
 public:
  struct Info {
    const ir::Kernel* kernel = nullptr;
    std::uint32_t line = 0;
    std::string what;
    std::uint32_t channel = kUnordered;
    bool needs_block = true;
    async::Issuer issuer{};
    bool may_outlive_block = false;
    std::function<void(std::vector<async::Touch>&)> touches{};
    Observer* observer = nullptr;
    ObservedOpPtr observed{};
    Cluster* observed_cluster = nullptr;  ///< where `touches` are to be reported
  };
  Task(Info info, std::function<void()> effect, std::function<bool()> ready = {})
      : info_(std::move(info)), effect_(std::move(effect)), ready_(std::move(ready)) {}

  void complete() override;
  bool ready() const override { return !ready_ || ready_(); }
  bool needs_block() const override { return info_.needs_block; }
  bool may_outlive_block() const override { return info_.may_outlive_block; }
  std::string describe() const override;
  std::uint32_t channel() const override { return info_.channel; }
  std::string_view what() const override { return info_.what; }
  std::uint32_t line() const override { return info_.line; }
  void touches(std::vector<async::Touch>& out) const override {
    if (info_.touches) info_.touches(out);
  }
  async::Issuer issuer() const override { return info_.issuer; }

 private:
  Info info_;
  std::function<void()> effect_;
  std::function<bool()> ready_;
};

/// Global memory at its host addresses: bounds, read-only and never-written bytes are errors.
class GlobalView : public model::ByteMemory {
 public:
  explicit GlobalView(const Launch& launch) : launch_(launch) {}
  void read(std::uint64_t address, std::span<std::byte> out) override;
  void write(std::uint64_t address, std::span<const std::byte> bytes) override;

 private:
  mem::Region& region(std::uint64_t address, std::uint64_t bytes) const;
  const Launch& launch_;
};

/// The shared memory of one CTA by offset, with the same checks.
class SharedView : public model::ByteMemory {
 public:
  explicit SharedView(Cta& cta) : cta_(cta) {}
  void read(std::uint64_t address, std::span<std::byte> out) override;
  void write(std::uint64_t address, std::span<const std::byte> bytes) override;

 private:
  void check(std::uint64_t address, std::uint64_t bytes) const;
  Cta& cta_;
};

/// A lane's value in a row of 4 or 8-byte slots; none (kNoOperand) is not asked for.
inline std::uint64_t lane_value(const Context& c, std::int32_t row, bool wide, int lane) {
  return wide ? c.row<const std::uint64_t>(row)[lane] : c.row<const std::uint32_t>(row)[lane];
}

/// Of a 32-bit shared address, or a generic one of the shared window. Throws where the cluster has
/// no such block.
SharedPlace shared_place(Cta& cta, std::uint64_t address);

/// complete_tx at a barrier; what ordinary loads see of the object follows.
void complete_bytes(const SharedPlace& barrier, std::uint64_t bytes);
void update_image(const SharedPlace& barrier);

}  // namespace mxfa::emu::exec
