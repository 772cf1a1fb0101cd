#include "support/mutants.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "mxemu/mutate.h"

namespace mxfa::testing {
namespace {

namespace fs = std::filesystem;

/// Writes the first failure and ends the process: nothing that comes later matters.
class FirstFailure final : public ::testing::EmptyTestEventListener {
 public:
  explicit FirstFailure(std::string path) : path_(std::move(path)) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::ofstream(path_) << result.message();
    ::_exit(1);
  }

 private:
  std::string path_;
};

struct Verdict {
  std::string name;  ///< "passed" where nothing shows
  std::string detail;
};

std::string first_line_after(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + mark.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

Verdict classify(const std::string& failure) {
  if (failure.find("hazards [") != std::string::npos) {
    const std::string rule = first_line_after(failure, "error: ");
    return {"reported", rule.substr(0, rule.find(':'))};
  }
  for (const char* stuck : {"deadlock", "no progress", "endless"}) {
    if (failure.find(stuck) != std::string::npos) return {"hung", stuck};
  }
  if (failure.find("CUDA_ERROR") != std::string::npos) {
    return {"reported", first_line_after(failure, "): ").substr(0, 90)};
  }
  return {"wrong output", ""};
}

class Mutants {
 public:
  explicit Mutants(const MutantRun& run)
      : run_(run), folder_(fs::temp_directory_path() / fmt::format("mxfa_mutants_{}", ::getpid())) {
    fs::create_directories(folder_ / "trace");
  }
  ~Mutants() { fs::remove_all(folder_); }
  Mutants(const Mutants&) = delete;
  Mutants& operator=(const Mutants&) = delete;

  int run() {
    driver::DriverOptions traced = run_.driver;
    traced.emulator.check_hazards = false;
    traced.emulator.trace_folder = (folder_ / "trace").string();
    for (const bool checked : {false, true}) {
      const Verdict intact = run_child(checked ? run_.driver : traced, run_.images);
      if (intact.name == "passed") continue;
      fmt::print(stderr, "the tests fail as they stand: {} {}\n", intact.name, intact.detail);
      return 1;
    }
    for (const driver::KernelImage& image : run_.images) {
      if (image.arch != run_.driver.arch) continue;
      for (const std::string& entry : launched_entries(image)) mutate(image, entry);
    }
    fmt::print("{} mutants:", total_);
    for (const auto& total : totals_) fmt::print(" {} {}", total.second, total.first);
    fmt::print("\n");
    return totals_.contains("wrong output") ? 1 : 0;
  }

 private:
  Verdict run_child(const driver::DriverOptions& options,
                    const std::vector<driver::KernelImage>& images) const {
    const std::string failure = (folder_ / "failure").string();
    fs::remove(failure);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const int nowhere = ::open("/dev/null", O_WRONLY);
      ::dup2(nowhere, STDOUT_FILENO);
      ::dup2(nowhere, STDERR_FILENO);
      ::testing::UnitTest::GetInstance()->listeners().Append(new FirstFailure(failure));
      try {
        ::_exit(run_.run_tests(options, images));
      } catch (const std::exception& error) {
        std::ofstream(failure) << error.what();
        ::_exit(1);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status)) return {"crashed", fmt::format("signal {}", WTERMSIG(status))};
    if (WEXITSTATUS(status) == 0) return {"passed", ""};
    std::ifstream file(failure);
    return classify({std::istreambuf_iterator<char>(file), {}});
  }

  /// By the names of the traces: KERNEL.NUMBER.json.
  std::set<std::string> launched_entries(const driver::KernelImage& image) const {
    std::set<std::string> names;
    for (const auto& file : fs::directory_iterator(folder_ / "trace")) {
      const std::string name = file.path().stem().stem().string();
      const bool here = image.ptx.find(" " + name + "(") != std::string_view::npos;
      if (here && name.find(run_.entry) != std::string::npos) names.insert(name);
    }
    return names;
  }

  Verdict run_text(const driver::KernelImage& image, const std::string& text,
                   const std::string& policy) const {
    std::vector<driver::KernelImage> images = run_.images;
    for (driver::KernelImage& other : images) {
      if (other.module == image.module && other.arch == image.arch) other.ptx = text;
    }
    driver::DriverOptions options = run_.driver;
    options.emulator.policy = policy;
    return run_child(options, images);
  }

  Verdict try_mutant(const driver::KernelImage& image, const std::string& ptx,
                     const emu::Mutation& mutation) const {
    const std::string text = emu::mutated(ptx, mutation);
    std::vector<std::string> policies{run_.driver.emulator.policy};
    for (const char* other : {"latest", "lifo", "starve", "earliest"}) policies.push_back(other);
    for (const std::string& policy : policies) {
      const Verdict verdict = run_text(image, text, policy);
      if (verdict.name != "passed") return verdict;
    }
    const Verdict trapped =
        run_text(image, emu::with_trap(ptx, mutation), run_.driver.emulator.policy);
    return {trapped.name == "passed" ? "not reached" : "redundant", ""};
  }

  void mutate(const driver::KernelImage& image, const std::string& entry) {
    const std::string ptx(image.ptx);
    fmt::print("{} {}\n", image.module, entry);
    for (const emu::Mutation& mutation : emu::find_mutations(ptx, entry, entry)) {
      const Verdict verdict = try_mutant(image, ptx, mutation);
      const std::string file = mutation.source_file.substr(mutation.source_file.rfind('/') + 1);
      fmt::print("{:>6}  {:<9}  {:<22}  {:<13}  {:<40}  {}:{} {}\n", mutation.line, mutation.kind,
                 mutation.change, verdict.name, verdict.detail, file, mutation.source_line,
                 verdict.name == "reported" ? "" : mutation.statement);
      std::fflush(stdout);
      ++total_;
      ++totals_[verdict.name];
    }
  }

  const MutantRun& run_;
  fs::path folder_;
  int total_ = 0;
  std::map<std::string, int> totals_;
};

}  // namespace

int run_mutants(const MutantRun& run) { return Mutants(run).run(); }

}  // namespace mxfa::testing
