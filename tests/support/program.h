#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

/// Runs the program MXFA_PROGRAM, as built, in a folder of its own.
namespace mxfa::cli {

struct Outcome {
  int status = -1;  ///< exit status; 128 + signal where it was killed
  std::string out;
  std::string err;
};

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("mxfa_cli_" + std::to_string(::getpid()) + "_" + info->name());
    std::filesystem::create_directories(folder_ / "logs");
    std::filesystem::create_directories(folder_ / "work");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / "work" / name).string(); }

  /// Names of the files in the folder that path() points into.
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "work")) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  Outcome run(const std::vector<std::string>& arguments) const {
    return run(arguments, (folder_ / "logs" / "out").string());
  }
  /// With standard output to `out`, which may be a device: its text is not kept.
  Outcome run(std::vector<std::string> arguments, const std::string& out) const {
    const std::string err = (folder_ / "logs" / "err").string();
    arguments.insert(arguments.begin(), MXFA_PROGRAM);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const int flags = O_WRONLY | O_CREAT | O_TRUNC;
      ::dup2(::open(out.c_str(), flags, 0600), STDOUT_FILENO);
      ::dup2(::open(err.c_str(), flags, 0600), STDERR_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const bool file = std::filesystem::is_regular_file(out);
    return {code, file ? file_text(out) : std::string(), file_text(err)};
  }

  /// Exit status of the program where a shell starts it with `words`; 128 + signal where it was
  /// killed.
  static int shell_status(const std::string& words) {
    const int status = std::system(("exec " + std::string(MXFA_PROGRAM) + " " + words).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Expects status 2 of wrong words and of a lost help text also where no message can be written.
  static void expect_quiet_refusals(const std::vector<std::string>& wrong) {
    for (const std::string& words : wrong) {
      EXPECT_EQ(shell_status(words + " >/dev/null 2>/dev/full"), 2) << words;
      EXPECT_EQ(shell_status(words + " >/dev/null 2>&-"), 2) << words;
    }
    EXPECT_EQ(shell_status("--help >&- 2>&-"), 2);
    EXPECT_EQ(shell_status("--help >/dev/full 2>/dev/full"), 2);
  }

  /// Expects exit status 2, `want` in the message, an empty standard output and no new file.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& want) const {
    const std::set<std::string> before = files();
    const Outcome outcome = run(arguments);
    std::ostringstream command;
    for (const std::string& argument : arguments) command << argument << ' ';
    EXPECT_EQ(outcome.status, 2) << command.str() << "\n" << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find(want), std::string::npos)
        << command.str() << "\nwant: " << want << "\ngot: " << outcome.err;
    EXPECT_EQ(outcome.out, "") << command.str();
    EXPECT_EQ(files(), before) << command.str();
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace mxfa::cli
