#include "litmus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "exec/kernel_table.h"
#include "ir/lower.h"
#include "mem/global.h"
#include "model/tensor_map.h"
#include "ptx/module.h"
#include "ptx/opcode.h"
#include "runtime/launch.h"
#include "support.h"

namespace mxfa::emu::test {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::stringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// A line with a mark, "code //+ names" or "code //- names", is there in some variants only.
std::string line_of_variant(const std::string& line, const std::string& variant) {
  for (const char* mark : {"//+", "//-"}) {
    const std::size_t at = line.find(mark);
    if (at == std::string::npos) continue;
    const std::vector<std::string> names = words_of(line.substr(at + 3));
    const bool named = std::ranges::find(names, variant) != names.end();
    return named == (mark[2] == '+') ? line.substr(0, at) : "";
  }
  return line;
}

class File {
 public:
  explicit File(const std::filesystem::path& path) : name_(path.stem().string()) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("//! ")) directive(line.substr(4));
      lines_.push_back(line);
    }
    for (LitmusVariant& variant : variants_) finish(variant);
  }

  std::vector<LitmusVariant>& variants() { return variants_; }

 private:
  void directive(const std::string& text) {
    const std::vector<std::string> words = words_of(text);
    if (words[0] == "block") return set(block_, words);
    if (words[0] == "grid") return set(grid_, words);
    if (words[0] == "cluster") return set(cluster_, words);
    LitmusVariant variant;
    variant.name = words.size() > 1 ? words[1] : "right";
    const std::size_t colon = text.find(": ");
    if (colon != std::string::npos) {
      variant.name = variant.name.substr(0, variant.name.find(':'));
      variant.text = text.substr(colon + 2);
    }
    const std::map<std::string, Verdict> verdicts{{"right", Verdict::kRight},
                                                  {"warn", Verdict::kWarning},
                                                  {"error", Verdict::kError},
                                                  {"fault", Verdict::kFault},
                                                  {"wrong", Verdict::kWrong}};
    if (!verdicts.contains(words[0])) throw std::runtime_error(name_ + ": " + text);
    variant.verdict = verdicts.at(words[0]);
    variants_.push_back(variant);
  }

  static void set(std::uint32_t& value, const std::vector<std::string>& words) {
    value = static_cast<std::uint32_t>(std::stoul(words.at(1)));
  }

  void finish(LitmusVariant& variant) const {
    variant.program = name_;
    variant.grid = grid_;
    variant.block = block_;
    variant.cluster = cluster_;
    for (const std::string& line : lines_) {
      variant.ptx += line_of_variant(line, variant.name) + "\n";
    }
  }

  std::string name_;
  std::vector<std::string> lines_;
  std::vector<LitmusVariant> variants_;
  std::uint32_t grid_ = 1;
  std::uint32_t block_ = 1;
  std::uint32_t cluster_ = 1;
};

model::TensorMapRecord tensor_map(const std::uint32_t* data) {
  const std::uint64_t dims[] = {32, 32};
  const std::uint64_t strides[] = {128};
  const std::uint32_t box[] = {32, 8};
  const std::uint32_t steps[] = {1, 1};
  model::TiledArguments arguments;
  arguments.data_type = 2;  // u32
  arguments.rank = 2;
  arguments.global_address = reinterpret_cast<std::uint64_t>(data);
  arguments.global_dim = dims;
  arguments.global_strides = strides;
  arguments.box_dim = box;
  arguments.element_strides = steps;
  return model::encode_tiled(arguments);
}

/// The program itself without Module, so that a filter can be put in.
void launch_filtered(const LitmusVariant& litmus, const GlobalMemory& memory,
                     const Arguments& arguments, const LaunchOptions& options,
                     const ObserverFilter& filter) {
  auto source = std::make_shared<ptx::Source>();
  source->name = litmus.program + ".ptx";
  source->text = litmus.ptx;
  const ptx::Module module = ptx::parse(source);
  ptx::OpcodeFinder opcodes;
  const std::vector<std::uint64_t> addresses(module.variables.size(), 0);
  const LaunchConfig config{{litmus.grid, 1, 1}, {litmus.block, 1, 1}, {litmus.cluster, 1, 1}, 0};
  LaunchOptions own = options;
  for (const char* name : {"before", "k"}) {
    const ptx::Function* entry = module.find_entry(name);
    if (entry == nullptr) continue;
    const auto kernel = std::make_shared<const ir::Kernel>(
        ir::lower(module, *entry, addresses, exec::KernelTable::best(), opcodes));
    std::vector<std::byte> params(kernel->param_bytes);
    for (std::size_t i = 0; i < kernel->params.size(); ++i) {
      std::ranges::copy(arguments.values()[i],
                        params.begin() + static_cast<std::ptrdiff_t>(kernel->params[i].offset));
    }
    std::shared_ptr<const GridFootprint> footprint;
    own.footprint = &footprint;
    runtime::launch({kernel, memory.snapshot(), config, params, filter}, own);
    own.overlapped = footprint;
  }
}

}  // namespace

LitmusResult run_litmus(const LitmusVariant& litmus, Policy policy, std::uint64_t seed,
                        const ObserverFilter& filter) {
  GlobalMemory memory;
  std::vector<std::uint32_t> values(1024);
  std::iota(values.begin(), values.end(), 0u);
  const Buffer<std::uint32_t> in(memory, values, "p");
  const Buffer<std::uint32_t> out(memory, std::vector<std::uint32_t>(1024, 0), "o");
  LitmusResult result;
  LaunchOptions options;
  options.policy = policy;
  options.seed = seed;
  options.converge = seed % 2 == 0;
  options.check = &result.report;
  options.spin_budget = 1 << 16;
  Arguments arguments;
  arguments.add(in.data()).add(out.data()).add(tensor_map(in.data()));
  try {
    launch_filtered(litmus, memory, arguments, options, filter);
  } catch (const PtxError& error) {
    result.fault = error.what();
  }
  result.output.assign(out.data(), out.data() + out.size());
  return result;
}

bool contains_one_of(const std::string& text, std::string choices) {
  while (!choices.empty()) {
    const std::size_t bar = choices.find(" | ");
    if (text.find(choices.substr(0, bar)) != std::string::npos) return true;
    choices = bar == std::string::npos ? "" : choices.substr(bar + 3);
  }
  return false;
}

bool has_hazard(const CheckReport& report, HazardLevel level, const std::string& choices) {
  return std::ranges::any_of(report.hazards, [&](const Hazard& hazard) {
    return hazard.level == level && contains_one_of(hazard.rule, choices);
  });
}

std::vector<LitmusVariant> load_litmus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".ptx") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<LitmusVariant> all;
  for (const auto& path : paths) {
    File file(path);
    all.insert(all.end(), file.variants().begin(), file.variants().end());
  }
  return all;
}

}  // namespace mxfa::emu::test
