#include "support/mutants.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "core/standard_streams.h"
#include "mxemu/experiment.h"

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

using emu::MutantVerdict;

/// Processor time of one run of the tests, where they take `intact` seconds as they stand. A mutant
/// may go round for ever and yet do something each time, which the emulator takes for progress.
rlim_t longest_run(double intact) { return static_cast<rlim_t>(10 + 20 * intact); }

double processor_seconds_of_children() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Verdict {
  std::optional<MutantVerdict> shown;  ///< none where nothing shows
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
    return {MutantVerdict::kReported, rule.substr(0, rule.find(':'))};
  }
  for (const char* stuck : {"deadlock", "endless loop"}) {
    if (failure.find(stuck) != std::string::npos) return {MutantVerdict::kHung, stuck};
  }
  if (failure.find("CUDA_ERROR") != std::string::npos) {
    return {MutantVerdict::kReported, first_line_after(failure, "): ").substr(0, 90)};
  }
  return {MutantVerdict::kWrongOutput, ""};
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
    traced.emulator.trace_folder = (folder_ / "trace").string();
    const Verdict intact = run_child(traced, run_.images);
    longest_run_ = longest_run(processor_seconds_of_children());
    if (intact.shown) {
      core::print_error("the tests fail as they stand: {} {}\n", emu::verdict_name(*intact.shown),
                        intact.detail);
      return 1;
    }
    for (const driver::KernelImage& image : run_.images) {
      if (image.arch != run_.driver.arch) continue;
      for (const std::string& entry : launched_entries(image)) mutate(image, entry);
    }
    fmt::print("{} of {} mutants:", total_, number_);
    for (const auto& [verdict, count] : totals_) {
      fmt::print(" {} {}", count, emu::verdict_name(verdict));
    }
    fmt::print("\n");
    return totals_.contains(MutantVerdict::kWrongOutput) ? 1 : 0;
  }

 private:
  Verdict run_child(const driver::DriverOptions& options,
                    const std::vector<driver::KernelImage>& images) const {
    const std::string failure = (folder_ / "failure").string();
    fs::remove(failure);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit limit{longest_run_, longest_run_ + 10};
      ::setrlimit(RLIMIT_CPU, &limit);
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
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) {
      return {MutantVerdict::kHung, fmt::format("no end in {} s", longest_run_)};
    }
    if (!WIFEXITED(status)) {
      return {MutantVerdict::kWrongOutput, fmt::format("signal {}", WTERMSIG(status))};
    }
    if (WEXITSTATUS(status) == 0) return {};
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

  /// What the waits of a kernel did in the launches of the tests as they stand:
  /// KERNEL.NUMBER.waits.
  std::vector<emu::WaitCoverage> waits_of(const std::string& entry) const {
    emu::CheckReport all;
    for (const auto& file : fs::directory_iterator(folder_ / "trace")) {
      const fs::path& path = file.path();
      if (path.extension() != ".waits" || path.stem().stem() != entry) continue;
      emu::CheckReport one;
      std::ifstream stream(path);
      for (emu::WaitCoverage wait;
           stream >> wait.ptx_line >> wait.passed >> wait.blocked >> wait.initial;) {
        one.waits.push_back(wait);
      }
      all.merge(one);
    }
    return all.waits;
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

  /// That of the run, then the others.
  std::vector<std::string> policies() const {
    const std::string& first = run_.driver.emulator.policy;
    std::vector<std::string> names{first};
    for (const emu::Policy policy : emu::kAllPolicies) {
      if (emu::policy_name(policy) != first) names.emplace_back(emu::policy_name(policy));
    }
    return names;
  }

  /// Under any policy: a wait behind a test of the same barrier is, where others are late.
  bool is_reached(const driver::KernelImage& image, const std::string& ptx,
                  const emu::Mutation& mutation) const {
    const std::string text = emu::with_trap(ptx, mutation);
    const auto names = policies();
    return std::ranges::any_of(names, [&](const std::string& policy) {
      return run_text(image, text, policy).shown.has_value();
    });
  }

  emu::MutantOutcome try_mutant(const driver::KernelImage& image, const std::string& ptx,
                                const std::vector<emu::WaitCoverage>& waits,
                                const emu::Mutation& mutation, bool reached) const {
    emu::MutantOutcome outcome;
    outcome.mutation = mutation;
    outcome.verdict = emu::silent_verdict(mutation, reached, waits, outcome.detail);
    if (!reached) return outcome;
    const std::string text = emu::mutated(ptx, mutation);
    for (const std::string& policy : policies()) {
      const Verdict verdict = run_text(image, text, policy);
      if (!verdict.shown) continue;
      outcome.verdict = *verdict.shown;
      outcome.detail = verdict.detail;
      return outcome;
    }
    return outcome;
  }

  void mutate(const driver::KernelImage& image, const std::string& entry) {
    const std::string ptx(image.ptx);
    const std::vector<emu::WaitCoverage> waits = waits_of(entry);
    fmt::print("{} {}\n", image.module, entry);
    std::uint32_t line = 0;
    bool reached = false;
    for (const emu::Mutation& mutation : emu::find_mutations(ptx, entry, entry)) {
      const int number = number_++;
      if (!run_.numbers.contains(number)) continue;
      if (mutation.line != line) {
        reached = is_reached(image, ptx, mutation);
        line = mutation.line;
      }
      const emu::MutantOutcome outcome = try_mutant(image, ptx, waits, mutation, reached);
      const std::string file = mutation.source_file.substr(mutation.source_file.rfind('/') + 1);
      const bool reported = outcome.verdict == MutantVerdict::kReported;
      fmt::print("{:>4} {:>6}  {:<9}  {:<22}  {:<13}  {:<40}  {}:{}{}{} {}\n", number,
                 mutation.line, mutation.kind, mutation.change, emu::verdict_name(outcome.verdict),
                 outcome.detail, file, mutation.source_line,
                 mutation.inlined_at.empty() ? "" : " at ", mutation.inlined_at,
                 reported ? "" : mutation.statement);
      std::fflush(stdout);
      ++total_;
      ++totals_[outcome.verdict];
    }
  }

  const MutantRun& run_;
  fs::path folder_;
  rlim_t longest_run_ = 3600;  // of the tests as they stand
  int number_ = 0;             ///< of mutants found
  int total_ = 0;              ///< of those run
  std::map<MutantVerdict, int> totals_;
};

}  // namespace

int run_mutants(const MutantRun& run) { return Mutants(run).run(); }

}  // namespace mxfa::testing
