#include "litmus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

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

}  // namespace

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
