#include "session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "io/atomic_file.h"
#include "words.h"

namespace mxfa::emu::cli {
namespace {

[[noreturn]] void fail(const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument, reason);
}

/// As C aligns a value of these bytes.
std::size_t alignment_of(const ArgumentSpec& spec, std::size_t bytes) {
  using enum ArgumentSpec::Kind;
  if (spec.kind == kTensorMap) return 128;  // CUtensorMap, since CUDA 13
  if (spec.kind != kStruct) return bytes;
  std::size_t alignment = 1;
  for (const ArgumentSpec& member : spec.members) {
    const std::size_t size = member.kind == kScalar ? initial_bytes(member).size() : 8;
    alignment = std::max(alignment, alignment_of(member, size));
  }
  return alignment;
}

void pad(std::vector<std::byte>& bytes, std::size_t alignment) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
}

}  // namespace

Session::Session(RunOptions& options) : options_(options), ptx_(read_text(options.path, "file")) {
  config_.grid = parse_dim3(options.grid, "--grid");
  config_.block = parse_dim3(options.block, "--block");
  if (!options.cluster.empty()) config_.cluster = parse_dim3(options.cluster, "--cluster");
  config_.dynamic_shared_bytes = options.shared_bytes;
  const std::uint64_t last = options.seed + (options.seeds - 1);
  core::expect(last >= options.seed, "--seeds", "the last seed to be one of 64 bits",
               fmt::format("{} from {}", options.seeds, options.seed));
  options.launch.converge = !options.keep_diverged;
  options.launch.check_uninitialised = !options.allow_uninitialised;
  options.launch.print = [](const std::string& line) { fmt::print("{}", line); };
  for (const std::string& text : options.buffers) {
    const ArgumentSpec spec = parse_buffer(text);
    add_buffer(spec.name, spec);
  }
  for (const std::string& text : options.arguments) {
    arguments_.push_back(parse_argument(text));
    if (arguments_.back().kind != ArgumentSpec::Kind::kBuffer) continue;
    add_buffer(std::to_string(arguments_.size() - 1), arguments_.back());
  }
  for (const ArgumentSpec& spec : arguments_) check_references(spec);
  outputs_ = parse_references(options.outputs, "--out");
  expected_ = parse_references(options.expected, "--expect");
  for (Reference& reference : expected_) {
    const std::string file = reference.value;
    const std::uint64_t bytes = reference.buffer->spec.bytes();
    reference.value = read_text(file, "--expect", bytes);
    if (reference.value.size() == bytes) continue;
    fail(fmt::format("--expect: expected a file of {} bytes, '{}' has {}", bytes, file,
                     reference.value.size()));
  }
  module_ =
      bad_input_of([&] { return std::make_unique<const Module>(ptx_, options.path, memory_); });
  choose_entry(options);
  allocate();
  bad_input_of([&] {
    check_arguments(module_->entry(options.entry));
    module_->check_launch(options.entry, config_);
  });
}

void Session::choose_entry(RunOptions& options) const {
  const std::vector<std::string> entries = module_->entries();
  core::expect(!entries.empty(), options.path, "a kernel (.entry)", "a text without any");
  if (options.entry.empty() && entries.size() == 1) options.entry = entries[0];
  core::expect(std::ranges::find(entries, options.entry) != entries.end(), "--entry",
               fmt::format("one of {}", fmt::join(entries, ", ")), "'" + options.entry + "'");
}

Session::~Session() { free_buffers(); }

void Session::check_outputs(const std::map<std::string, std::string>& file_of_option) const {
  std::vector<std::pair<std::string, std::string>> seen{{"the PTX", options_.path}};
  for (const std::string& file : options_.word_files) seen.emplace_back("words", file);
  for (const std::string& text : options_.expected) {
    seen.emplace_back("--expect", text.substr(text.find('=') + 1));
  }
  for (const auto& [buffer_name, buffer] : buffers_) {
    const std::string& pattern = buffer.spec.value;
    if (pattern.starts_with('@')) seen.emplace_back("a buffer", pattern.substr(1));
  }
  const auto check = [&](const std::string& option, const std::string& file) {
    for (const auto& [other, name] : seen) {
      core::expect(!io::is_same_file(file, name), option, "a file of its own",
                   fmt::format("'{}', which is also for {}", file, other));
    }
    try {
      io::check_writable(file);
    } catch (const Error& error) {
      fail(fmt::format("{}: {}", option, error.what()));
    }
    seen.emplace_back(option, file);
  };
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    check("--out " + options_.outputs[i], outputs_[i].value);
  }
  for (const auto& [option, file] : file_of_option) {
    if (!file.empty()) check(option, file);
  }
}

std::uint64_t Session::blocks() const {
  return std::uint64_t{config_.grid[0]} * config_.grid[1] * config_.grid[2];
}

std::uint64_t Session::warps() const {
  return (std::uint64_t{config_.block[0]} * config_.block[1] * config_.block[2] + 31) / 32;
}

// Each buffer is there twice: as it is, and as it was before the launch.
void Session::check_memory(const ArgumentSpec& next) const {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t bytes = next.bytes();
  for (const auto& entry : buffers_) bytes += entry.second.spec.bytes();
  core::expect(bytes <= machine / 2, next.text,
               fmt::format("at most {} bytes in all buffers on this machine", machine / 2),
               std::to_string(bytes));
}

void Session::add_buffer(const std::string& name, const ArgumentSpec& spec) {
  check_memory(spec);
  if (!buffers_.try_emplace(name, Buffer{spec, initial_bytes(spec), nullptr}).second) {
    fail(fmt::format("{}: there is a buffer '{}' already", spec.text, name));
  }
}

const Session::Buffer& Session::find_buffer(const std::string& name,
                                            const std::string& text) const {
  const auto found = buffers_.find(name);
  if (found != buffers_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : buffers_) names.push_back(entry.first);
  fail(fmt::format("{}: no buffer '{}'; there are: {}", text, name,
                   names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

std::vector<Session::Reference> Session::parse_references(const std::vector<std::string>& texts,
                                                          const std::string& option) const {
  std::vector<Reference> result;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals + 1 == text.size()) {
      fail(fmt::format("{} {}: expected BUFFER=FILE", option, text));
    }
    const Buffer& buffer = find_buffer(text.substr(0, equals), fmt::format("{} {}", option, text));
    result.push_back({&buffer, text.substr(equals + 1)});
  }
  return result;
}

void Session::check_references(const ArgumentSpec& spec) const {
  for (const ArgumentSpec& member : spec.members) check_references(member);
  const bool map = spec.kind == ArgumentSpec::Kind::kTensorMap;
  if (!map && spec.kind != ArgumentSpec::Kind::kPointer) return;
  const Buffer& buffer = find_buffer(spec.name, spec.text);
  if (spec.offset >= buffer.spec.bytes()) {
    fail(fmt::format("{}: '{}' has {} bytes", spec.text, spec.name, buffer.spec.bytes()));
  }
  // An address as aligned as a buffer's: whatever else is wrong shows before the first launch.
  if (map) encode_map(spec, reinterpret_cast<const std::byte*>(std::uint64_t{1} << 32));
}

void Session::check_arguments(const EntryInfo& info) const {
  if (info.params.size() != arguments_.size()) {
    std::vector<std::string> params;
    for (const ParamInfo& param : info.params) {
      params.push_back(fmt::format("{} ({} bytes)", param.name, param.bytes));
    }
    fail(fmt::format("--arg: {} takes {} arguments, got {}; its parameters: {}", info.name,
                     info.params.size(), arguments_.size(), fmt::join(params, ", ")));
  }
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const std::size_t bytes = argument_bytes(arguments_[i], std::to_string(i)).size();
    if (bytes == info.params[i].bytes) continue;
    fail(fmt::format("{}: {} bytes, but the parameter {} has {}", arguments_[i].text, bytes,
                     info.params[i].name, info.params[i].bytes));
  }
}

std::vector<std::byte> Session::argument_bytes(const ArgumentSpec& spec,
                                               const std::string& number) const {
  using enum ArgumentSpec::Kind;
  std::vector<std::byte> bytes;
  const auto put = [&](const auto& value) {
    const auto* data = reinterpret_cast<const std::byte*>(&value);
    bytes.assign(data, data + sizeof(value));
  };
  switch (spec.kind) {
    case kScalar:
      return initial_bytes(spec);
    case kBuffer:
      put(buffers_.at(number).data);
      break;
    case kPointer:
      put(reinterpret_cast<std::uint64_t>(buffers_.at(spec.name).data) + spec.offset);
      break;
    case kTensorMap:
      put(encode_map(spec, buffers_.at(spec.name).data));
      break;
    case kStruct:
      for (const ArgumentSpec& member : spec.members) {
        const std::vector<std::byte> part = argument_bytes(member, {});
        pad(bytes, alignment_of(member, part.size()));
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
      pad(bytes, alignment_of(spec, bytes.size()));
      break;
  }
  return bytes;
}

void Session::free_buffers() {
  for (auto& entry : buffers_) {
    if (entry.second.data != nullptr) memory_.free(entry.second.data);
    entry.second.data = nullptr;
  }
}

void Session::allocate() {
  free_buffers();
  for (auto& [name, buffer] : buffers_) {
    buffer.data = memory_.allocate(buffer.spec.bytes(), name);
    std::ranges::copy(buffer.initial, buffer.data);
    if (!buffer.initial.empty()) memory_.mark_initialised(buffer.data, buffer.initial.size());
  }
}

LaunchStats Session::launch(const Module& module, const LaunchOptions& options) {
  allocate();
  Arguments arguments;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const std::vector<std::byte> bytes = argument_bytes(arguments_[i], std::to_string(i));
    arguments.add_bytes(bytes.data(), bytes.size());
  }
  return module.launch(options_.entry, config_, arguments, options);
}

std::uint64_t Session::checksum() const {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const auto& entry : buffers_) {
    const std::byte* data = entry.second.data;
    const std::uint64_t bytes = entry.second.spec.bytes();
    for (std::uint64_t b = 0; b < bytes; ++b) {
      hash = (hash ^ static_cast<std::uint64_t>(data[b])) * 0x100000001B3u;
    }
  }
  return hash;
}

bool Session::as_expected() const {
  return std::ranges::all_of(expected_, [](const Reference& reference) {
    return std::memcmp(reference.buffer->data, reference.value.data(), reference.value.size()) == 0;
  });
}

void Session::write_outputs() const {
  for (const Reference& reference : outputs_) {
    io::AtomicFile file(reference.value);
    file.write({reference.buffer->data, reference.buffer->spec.bytes()});
    file.commit();
  }
}

}  // namespace mxfa::emu::cli
