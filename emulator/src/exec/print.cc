#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "exec/handlers.h"
#include "exec/machine.h"

/// printf and assert of device code: calls of vprintf(format, arguments) and __assertfail(message,
/// file, line, function, size), whose parameters lie in local memory slots.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

constexpr std::size_t kMaxText = 4096;

/// Reads of one lane through generic addresses.
class LaneReader {
 public:
  LaneReader(Warp& warp, const Inst& in, int lane) : warp_(warp), in_(in), lane_(lane) {}

  const std::byte* at(std::uint64_t address, std::uint64_t bytes) const {
    const std::uint64_t inside = address & ~(std::uint64_t{0xFF} << 56);
    if (mem::window_tag(address) == static_cast<std::uint8_t>(mem::Window::kLocal)) {
      const std::uint64_t size = warp_.cta().launch.kernel->local_bytes;
      if (bytes <= size && inside <= size - bytes) return warp_.local(lane_) + inside;
    } else if (const mem::Region* region = mem::find_region(*warp_.cta().launch.memory, address)) {
      if (region->contains(address, bytes)) return reinterpret_cast<const std::byte*>(address);
    }
    warp_.fail(in_, 1u << lane_, "printf or assert with an address outside of every buffer");
  }
  template <class T>
  T get(std::uint64_t address) const {
    T value;
    std::memcpy(&value, at(address, sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  T slot(int index) const {
    const std::int32_t offset =
        warp_.cta().launch.kernel->lists[in_.extra + static_cast<std::uint32_t>(index)];
    T value;
    std::memcpy(&value, warp_.local(lane_) + offset, sizeof(T));
    return value;
  }
  std::string text(std::uint64_t address) const {
    std::string result;
    while (result.size() < kMaxText) {
      const char c = get<char>(address + result.size());
      if (c == '\0') break;
      result += c;
    }
    return result;
  }

 private:
  Warp& warp_;
  const Inst& in_;
  int lane_;
};

class Formatter {
 public:
  Formatter(const LaneReader& reader, std::uint64_t arguments)
      : reader_(reader), next_(arguments) {}

  std::string run(const std::string& format) {
    std::string result;
    for (std::size_t i = 0; i < format.size();) {
      if (format[i] != '%') {
        result += format[i++];
        continue;
      }
      std::string spec = "%";
      ++i;
      while (i < format.size() && std::strchr("-+ #0123456789.*", format[i]) != nullptr) {
        spec +=
            format[i] == '*' ? std::to_string(argument<std::int32_t>()) : std::string(1, format[i]);
        ++i;
      }
      bool is_long = false;
      while (i < format.size() && std::strchr("hlLzjt", format[i]) != nullptr) {
        is_long |= format[i] != 'h';
        ++i;
      }
      if (i >= format.size()) break;
      result += convert(spec, format[i++], is_long);
    }
    return result;
  }

 private:
  template <class T>
  T argument() {
    next_ = (next_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const T value = reader_.get<T>(next_);
    next_ += sizeof(T);
    return value;
  }

  template <class T>
  static std::string print(const std::string& spec, T value) {
    char buffer[512];
    const int size = std::snprintf(buffer, sizeof(buffer), spec.c_str(), value);
    return std::string(buffer, static_cast<std::size_t>(std::clamp(size, 0, 511)));
  }

  std::string convert(const std::string& spec, char kind, bool is_long) {
    switch (kind) {
      case '%':
        return "%";
      case 'c':
        return print(spec + "c", argument<std::int32_t>());
      case 's':
        return reader_.text(argument<std::uint64_t>());
      case 'p':
        return fmt::format("0x{:x}", argument<std::uint64_t>());
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
      case 'a':
      case 'A':
        return print(spec + kind, argument<double>());
      case 'd':
      case 'i':
        return is_long ? print(spec + "lld", argument<long long>())
                       : print(spec + "d", argument<std::int32_t>());
      default:
        return is_long ? print(spec + "ll" + kind, argument<unsigned long long>())
                       : print(spec + kind, argument<std::uint32_t>());
    }
  }

  const LaneReader& reader_;
  std::uint64_t next_;
};

}  // namespace

void call_printf(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  const auto& print = warp.cta().launch.print;
  if (!print) return;
  for (; mask != 0; mask &= mask - 1) {
    const LaneReader reader(warp, in, std::countr_zero(mask));
    const std::string format = reader.text(reader.slot<std::uint64_t>(0));
    print(Formatter(reader, reader.slot<std::uint64_t>(1)).run(format));
  }
}

void call_assert(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  const LaneReader reader(warp, in, std::countr_zero(mask));
  warp.fail(in, mask,
            fmt::format("assertion '{}' failed at {}:{} in {}",
                        reader.text(reader.slot<std::uint64_t>(0)),
                        reader.text(reader.slot<std::uint64_t>(1)), reader.slot<std::uint32_t>(2),
                        reader.text(reader.slot<std::uint64_t>(3))),
            Fault::kAssert);
}

}  // namespace mxfa::emu::exec
