#include "arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "mx/bits.h"
#include "mx/fp8.h"
#include "words.h"

namespace mxfa::emu::cli {

const char* const kArgumentHelp = R"(Arguments, in the order of the kernel's parameters:
  --arg TYPE=VALUE          a scalar: s32=7, f32=0.5
  --arg TYPE:COUNT=PATTERN  a buffer of its own, known by its number among the arguments, from 0
  --arg ptr=BUFFER[+BYTES]  the address of a buffer
  --arg map=BUFFER,TYPE,DIMS,BOX[,swizzle=32|64|128][,strides=BYTES][,steps=N][,fill=nan]
                            a tensor map for TMA, innermost dimension first, 512x256; strides of
                            the outer dimensions, packed where left out
  --arg 'struct={A; B; ..}' members as above (no buffers), laid out as C does
  --buffer NAME=TYPE:COUNT=PATTERN
                            a buffer that is no argument itself: for ptr= and map=
  TYPE     u8 s8 u16 s16 u32 s32 u64 s64 f16 bf16 f32 f64 e4m3 e8m0
  PATTERN  out (for the kernel to write), zeros, ones, iota, random[:SEED] (normal; any bits for
           integers; 2^-4..2^3 for e8m0), fill:VALUE, @FILE (raw bytes)
A word @FILE stands for the words in that file (# begins a comment), so that a launch can be
described once: ptxemu check kernel.ptx @launch.args

Example, a kernel of a TMA load:
  ptxemu check copy.ptx --block 128 --smem 8192 --buffer in=f32:4096=iota \
    --arg map=in,f32,64x64,32x64 --arg f32:2048=out)";

namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 32;

struct TypeInfo {
  const char* name;
  std::size_t bytes;
  char kind;  ///< 'i' integer, 'f' FP32, 'd' FP64, 'h' FP16, 'b' BF16, '8' E4M3, 's' E8M0
  double largest = 0.0;  ///< finite value, of a floating-point type
};
constexpr TypeInfo kTypes[] = {
    {"u8", 1, 'i'},
    {"s8", 1, 'i'},
    {"u16", 2, 'i'},
    {"s16", 2, 'i'},
    {"u32", 4, 'i'},
    {"s32", 4, 'i'},
    {"u64", 8, 'i'},
    {"s64", 8, 'i'},
    {"f32", 4, 'f', std::numeric_limits<float>::max()},
    {"f64", 8, 'd', std::numeric_limits<double>::max()},
    {"f16", 2, 'h', 65504.0},
    {"bf16", 2, 'b', 0x1.FEp127},
    {"e4m3", 1, '8', 448.0},
    {"e8m0", 1, 's', 0x1p127},
};
/// In the order of CUtensorMapDataType.
constexpr const char* kMapTypes[] = {"u8",      "u16",   "u32",      "s32",     "u64",    "s64",
                                     "f16",     "f32",   "f64",      "bf16",    "f32ftz", "tf32",
                                     "tf32ftz", "b4x16", "b4x16p64", "b6x16p32"};

[[noreturn]] void fail(const std::string& text, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: {}", text, reason));
}

const TypeInfo& type_info(const ArgumentSpec& spec) {
  for (const TypeInfo& info : kTypes) {
    if (spec.type == info.name) return info;
  }
  fail(spec.text, fmt::format("unknown type '{}'", spec.type));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// "512x256".
template <class T>
std::vector<T> parse_sizes(const std::string& text, const std::string& sizes) {
  std::vector<T> result;
  for (const std::string& size : split(sizes, 'x')) result.push_back(parse_whole<T>(text, size));
  return result;
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
    case '8':
      return mx::encode_e4m3(static_cast<float>(value));
    case 's':
      return mx::float_bits(static_cast<float>(value)) >> 23 & 0xFFu;
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
  const std::string text = read_text(spec.value.substr(1), spec.text, spec.bytes());
  if (text.size() != spec.bytes()) {
    fail(spec.text, fmt::format("expected a file of {} bytes, got {}", spec.bytes(), text.size()));
  }
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// A number that the type holds, if rounded. Infinity only where it is asked for, and there is one.
double parse_real(const std::string& text, const TypeInfo& type, const std::string& number) {
  double value = 0.0;
  const char* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, value);
  const bool scale = type.kind == 's';
  bool ok = parsed.ec == std::errc{} && parsed.ptr == end;
  if (std::isinf(value)) {
    ok = ok && !scale && type.kind != '8';
  } else if (!std::isnan(value)) {
    int exponent = 0;
    const bool power = std::frexp(value, &exponent) == 0.5 && exponent >= -126;
    ok = ok && std::abs(value) <= type.largest && (!scale || power);
  }
  core::expect(ok, text,
               scale ? "a power of two, 2^-127 to 2^127"
                     : fmt::format("a number of {0:.9g} to {1:.9g}", -type.largest, type.largest),
               "'" + number + "'");
  return value;
}

/// A number as the type reads it.
std::uint64_t scalar_bits(const ArgumentSpec& spec, const std::string& number) {
  const TypeInfo& type = type_info(spec);
  if (type.kind != 'i') return encode(type, parse_real(spec.text, type, number));
  const std::size_t unused = 64 - 8 * type.bytes;
  if (type.name[0] == 'u') {
    const std::uint64_t max = std::numeric_limits<std::uint64_t>::max() >> unused;
    return parse_whole<std::uint64_t>(spec.text, number, 0, max);
  }
  const std::int64_t max = std::numeric_limits<std::int64_t>::max() >> unused;
  return static_cast<std::uint64_t>(parse_whole<std::int64_t>(spec.text, number, -max - 1, max));
}

/// A pattern that makes the i-th element.
class Pattern {
 public:
  explicit Pattern(const ArgumentSpec& spec) : type_(type_info(spec)) {
    const std::size_t colon = spec.value.find(':');
    name_ = spec.value.substr(0, colon);
    const bool known = name_ == "random" || name_ == "zeros" || name_ == "ones" ||
                       name_ == "iota" || name_ == "fill";
    if (!known) fail(spec.text, fmt::format("unknown pattern '{}'", spec.value));
    const std::string after = colon == std::string::npos ? "" : spec.value.substr(colon + 1);
    if (name_ == "fill") {
      fill_ = scalar_bits(spec, after);
    } else if (colon != std::string::npos) {
      if (name_ != "random") fail(spec.text, fmt::format("'{}' takes no number", name_));
      rng_.seed(parse_whole<std::uint64_t>(spec.text, after));
    }
  }

  std::uint64_t bits(std::uint64_t i) {
    if (name_ == "fill") return fill_;
    if (name_ == "random" && type_.kind == 'i') return rng_();
    if (name_ == "random" && type_.kind == 's') return 123 + rng_() % 8;
    if (name_ == "zeros") return 0;
    return encode(type_, name_ == "random" ? normal_(rng_)
                         : name_ == "iota" ? static_cast<double>(i)
                                           : 1.0);
  }

 private:
  const TypeInfo& type_;
  std::string name_;
  std::uint64_t fill_ = 0;
  std::mt19937_64 rng_{1};
  std::normal_distribution<double> normal_;
};

void parse_reference(ArgumentSpec& spec, const std::string& reference) {
  const std::size_t plus = reference.find('+');
  spec.name = reference.substr(0, plus);
  if (plus == std::string::npos) return;
  spec.offset = parse_whole<std::uint64_t>(spec.text, reference.substr(plus + 1));
}

void parse_map_option(ArgumentSpec& spec, const std::string& option) {
  const std::size_t equals = option.find('=');
  const std::string name = option.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  if (name == "swizzle") {
    const auto* const names = "0 32 64 128 ";
    const std::size_t at = std::string(names).find(value + " ");
    if (value.empty() || at == std::string::npos) {
      fail(spec.text, fmt::format("swizzle: expected 0, 32, 64 or 128, got '{}'", value));
    }
    spec.swizzle = value == "0" ? 0 : value == "32" ? 1 : value == "64" ? 2 : 3;
  } else if (name == "strides") {
    spec.strides = parse_sizes<std::uint64_t>(spec.text, value);
  } else if (name == "steps") {
    spec.steps = parse_sizes<std::uint32_t>(spec.text, value);
  } else if (name == "fill" && (value == "nan" || value == "zero")) {
    spec.fill_nan = value == "nan";
  } else {
    fail(spec.text, fmt::format("unknown option '{}'", option));
  }
}

void parse_map(ArgumentSpec& spec) {
  spec.kind = ArgumentSpec::Kind::kTensorMap;
  const std::vector<std::string> parts = split(spec.value, ',');
  if (parts.size() < 4) fail(spec.text, "expected map=BUFFER,TYPE,DIMS,BOX");
  parse_reference(spec, parts[0]);
  spec.type = parts[1];
  if (std::ranges::find(kMapTypes, spec.type) == std::end(kMapTypes)) {
    fail(spec.text, fmt::format("unknown element type '{}'", spec.type));
  }
  spec.dims = parse_sizes<std::uint64_t>(spec.text, parts[2]);
  spec.box = parse_sizes<std::uint32_t>(spec.text, parts[3]);
  for (std::size_t i = 4; i < parts.size(); ++i) parse_map_option(spec, parts[i]);
  const auto expect_size = [&](const char* what, std::size_t got, std::size_t expected) {
    if (got == expected) return;
    fail(spec.text, fmt::format("{}: expected {} sizes, got {}", what, expected, got));
  };
  expect_size("BOX", spec.box.size(), spec.dims.size());
  if (!spec.strides.empty()) expect_size("strides", spec.strides.size(), spec.dims.size() - 1);
  if (!spec.steps.empty()) expect_size("steps", spec.steps.size(), spec.dims.size());
}

void parse_struct(ArgumentSpec& spec) {
  spec.kind = ArgumentSpec::Kind::kStruct;
  const std::string& value = spec.value;
  if (value.size() < 2 || value.front() != '{' || value.back() != '}') {
    fail(spec.text, "expected struct={MEMBER; MEMBER; ..}");
  }
  for (std::string member : split(value.substr(1, value.size() - 2), ';')) {
    member.erase(0, std::min(member.find_first_not_of(' '), member.size()));
    member.erase(member.find_last_not_of(' ') + 1);
    if (member.empty()) fail(spec.text, "a member is empty");
    spec.members.push_back(parse_argument(member));
    if (spec.members.back().kind == ArgumentSpec::Kind::kBuffer) {
      fail(spec.text, fmt::format("'{}': a struct points to buffers by ptr=NAME", member));
    }
  }
}

void parse_buffer_type(ArgumentSpec& spec, std::size_t colon) {
  spec.kind = ArgumentSpec::Kind::kBuffer;
  spec.count = parse_whole<std::uint64_t>(spec.text, spec.type.substr(colon + 1), 1, kMaxElements);
  spec.type.resize(colon);
}

}  // namespace

std::uint64_t ArgumentSpec::bytes() const { return count * type_info(*this).bytes; }

ArgumentSpec parse_argument(const std::string& text) {
  ArgumentSpec spec;
  spec.text = "--arg " + text;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) fail(spec.text, "expected TYPE=VALUE or TYPE:COUNT=PATTERN");
  spec.value = text.substr(equals + 1);
  spec.type = text.substr(0, equals);
  if (spec.type == "ptr") {
    spec.kind = ArgumentSpec::Kind::kPointer;
    parse_reference(spec, spec.value);
  } else if (spec.type == "map") {
    parse_map(spec);
  } else if (spec.type == "struct") {
    parse_struct(spec);
  } else {
    const std::size_t colon = spec.type.find(':');
    if (colon != std::string::npos) parse_buffer_type(spec, colon);
    type_info(spec);
    if (spec.kind == ArgumentSpec::Kind::kScalar) scalar_bits(spec, spec.value);
  }
  return spec;
}

ArgumentSpec parse_buffer(const std::string& text) {
  const std::size_t equals = text.find('=');
  const bool named = equals != std::string::npos && equals > 0;
  if (!named || text.find('=', equals + 1) == std::string::npos) {
    fail("--buffer " + text, "expected NAME=TYPE:COUNT=PATTERN");
  }
  ArgumentSpec spec = parse_argument(text.substr(equals + 1));
  spec.text = "--buffer " + text;
  if (spec.kind != ArgumentSpec::Kind::kBuffer) fail(spec.text, "expected NAME=TYPE:COUNT=PATTERN");
  spec.name = text.substr(0, equals);
  return spec;
}

Policy parse_policy(const std::string& name, bool timed) {
  const std::optional<Policy> policy = find_policy(name);
  if (policy && (timed || *policy != Policy::kTimed)) return *policy;
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("--policy: expected {}, got '{}'", policy_names(timed), name));
}

std::vector<std::byte> initial_bytes(const ArgumentSpec& spec) {
  const TypeInfo& type = type_info(spec);
  std::vector<std::byte> out;
  if (spec.kind == ArgumentSpec::Kind::kScalar) {
    append(out, type, scalar_bits(spec, spec.value));
    return out;
  }
  if (spec.value == "out") return out;
  if (spec.value.starts_with("@")) return read_file(spec);
  Pattern pattern(spec);
  out.reserve(spec.bytes());
  for (std::uint64_t i = 0; i < spec.count; ++i) append(out, type, pattern.bits(i));
  return out;
}

model::TensorMapRecord encode_map(const ArgumentSpec& spec, const std::byte* address) {
  const auto type =
      static_cast<std::uint32_t>(std::ranges::find(kMapTypes, spec.type) - std::begin(kMapTypes));
  std::vector<std::uint64_t> strides = spec.strides;
  std::uint64_t packed =
      static_cast<std::uint64_t>(model::tensor_type_bits(static_cast<model::TensorType>(type)));
  for (std::size_t i = 0; strides.size() + 1 < spec.dims.size(); ++i) {
    packed *= spec.dims[i];
    strides.push_back(packed / 8);
  }
  std::vector<std::uint32_t> steps = spec.steps;
  steps.resize(spec.dims.size(), 1);
  model::TiledArguments arguments;
  arguments.data_type = type;
  arguments.rank = static_cast<std::uint32_t>(spec.dims.size());
  arguments.global_address = reinterpret_cast<std::uint64_t>(address) + spec.offset;
  arguments.global_dim = spec.dims;
  arguments.global_strides = strides;
  arguments.box_dim = spec.box;
  arguments.element_strides = steps;
  arguments.swizzle = spec.swizzle;
  arguments.oob_fill = spec.fill_nan ? 1 : 0;
  try {
    return model::encode_tiled(arguments);
  } catch (const Error& error) {
    fail(spec.text, error.what());
  }
}

}  // namespace mxfa::emu::cli
