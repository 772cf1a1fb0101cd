#include "arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <random>
#include <sstream>

#include "core/check.h"
#include "mx/bits.h"

namespace mxfa::emu::cli {
namespace {

struct TypeInfo {
  const char* name;
  std::size_t bytes;
  char kind;  ///< 'i' integer, 'f' FP32, 'd' FP64, 'h' FP16, 'b' BF16
};
constexpr TypeInfo kTypes[] = {{"u8", 1, 'i'},  {"s8", 1, 'i'},  {"u16", 2, 'i'}, {"s16", 2, 'i'},
                               {"u32", 4, 'i'}, {"s32", 4, 'i'}, {"u64", 8, 'i'}, {"s64", 8, 'i'},
                               {"f32", 4, 'f'}, {"f64", 8, 'd'}, {"f16", 2, 'h'}, {"bf16", 2, 'b'}};

[[noreturn]] void fail(const std::string& text, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument, fmt::format("--arg {}: {}", text, reason));
}

const TypeInfo& type_info(const ArgumentSpec& spec) {
  for (const TypeInfo& info : kTypes) {
    if (spec.type == info.name) return info;
  }
  fail(spec.text, fmt::format("unknown type '{}'", spec.type));
}

template <class T>
T parse_number(const std::string& text, const std::string& number) {
  T value{};
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
  if (result.ec != std::errc{} || result.ptr != number.data() + number.size()) {
    fail(text, fmt::format("'{}' is not a number", number));
  }
  return value;
}

std::uint64_t encode(const TypeInfo& type, double value) {
  switch (type.kind) {
    case 'f':
      return mx::float_bits(static_cast<float>(value));
    case 'd':
      return __builtin_bit_cast(std::uint64_t, value);
    case 'h':
      return mx::encode_f16(static_cast<float>(value));
    case 'b':
      return mx::encode_bf16(static_cast<float>(value));
    default:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
}

void append(std::vector<std::byte>& out, const TypeInfo& type, std::uint64_t bits) {
  for (std::size_t i = 0; i < type.bytes; ++i) {
    out.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
}

std::vector<std::byte> read_file(const ArgumentSpec& spec) {
  const std::string text = read_text(spec.value.substr(1));
  if (text.size() != spec.bytes()) {
    fail(spec.text, fmt::format("expected a file of {} bytes, got {}", spec.bytes(), text.size()));
  }
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

}  // namespace

std::uint64_t ArgumentSpec::bytes() const { return count * type_info(*this).bytes; }

ArgumentSpec parse_argument(const std::string& text) {
  ArgumentSpec spec;
  spec.text = text;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) fail(text, "expected TYPE=VALUE or TYPE:COUNT=PATTERN");
  spec.value = text.substr(equals + 1);
  spec.type = text.substr(0, equals);
  const std::size_t colon = spec.type.find(':');
  if (colon != std::string::npos) {
    spec.is_buffer = true;
    spec.count = parse_number<std::uint64_t>(text, spec.type.substr(colon + 1));
    spec.type.resize(colon);
    if (spec.count == 0 || spec.count > (std::uint64_t{1} << 32)) fail(text, "count out of range");
  }
  type_info(spec);
  return spec;
}

std::vector<std::byte> initial_bytes(const ArgumentSpec& spec) {
  const TypeInfo& type = type_info(spec);
  std::vector<std::byte> out;
  if (!spec.is_buffer) {
    if (type.kind == 'i' && type.name[0] == 'u') {
      append(out, type, parse_number<std::uint64_t>(spec.text, spec.value));
    } else if (type.kind == 'i') {
      append(out, type,
             static_cast<std::uint64_t>(parse_number<std::int64_t>(spec.text, spec.value)));
    } else {
      append(out, type, encode(type, parse_number<double>(spec.text, spec.value)));
    }
    return out;
  }
  if (spec.value == "out") return out;
  if (spec.value.starts_with("@")) return read_file(spec);
  const bool random = spec.value.starts_with("random");
  std::uint64_t seed = 1;
  if (spec.value.starts_with("random:")) {
    seed = parse_number<std::uint64_t>(spec.text, spec.value.substr(7));
  } else if (spec.value != "random" && spec.value != "zeros" && spec.value != "ones" &&
             spec.value != "iota") {
    fail(spec.text, fmt::format("unknown pattern '{}'", spec.value));
  }
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  out.reserve(spec.bytes());
  for (std::uint64_t i = 0; i < spec.count; ++i) {
    if (random && type.kind == 'i') {
      append(out, type, rng());
      continue;
    }
    const double value = random                 ? normal(rng)
                         : spec.value == "iota" ? static_cast<double>(i)
                         : spec.value == "ones" ? 1.0
                                                : 0.0;
    append(out, type, encode(type, value));
  }
  return out;
}

std::array<std::uint32_t, 3> parse_dim3(const std::string& text, const std::string& option) {
  std::array<std::uint32_t, 3> result{1, 1, 1};
  std::stringstream stream(text);
  std::string part;
  std::size_t i = 0;
  while (std::getline(stream, part, ',')) {
    std::uint32_t value = 0;
    const auto end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, value);
    if (i >= 3 || parsed.ec != std::errc{} || parsed.ptr != end) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("{}: expected X[,Y[,Z]], got '{}'", option, text));
    }
    result[i++] = value;
  }
  core::expect(i > 0, option, "X[,Y[,Z]]", text);
  return result;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw Error(ErrorKind::kIo, fmt::format("cannot read '{}'", path));
  return text.str();
}

void write_bytes(const std::string& path, const std::byte* data, std::size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) throw Error(ErrorKind::kIo, fmt::format("cannot write '{}'", path));
}

}  // namespace mxfa::emu::cli
