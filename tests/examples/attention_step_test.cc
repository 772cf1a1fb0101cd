#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

/// The example that README.md shows.
namespace mxfa::examples {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(AttentionStep, ReadmeShowsIt) {
  const std::string source = text_of(std::string(MXFA_EXAMPLES_DIR) + "/attention_step.cc");
  const std::string mark = "// [snippet]\n";
  const std::size_t begin = source.find(mark) + mark.size(), end = source.rfind(mark);
  ASSERT_GT(end, begin);
  const std::string snippet = "```cpp\n" + source.substr(begin, end - begin) + "```";
  EXPECT_NE(text_of(std::string(MXFA_EXAMPLES_DIR) + "/../README.md").find(snippet),
            std::string::npos)
      << "README.md lacks:\n"
      << snippet;
}

TEST(AttentionStep, GivesGradientsAndNamesWhatDoesNotFit) {
  std::FILE* const pipe = ::popen(MXFA_ATTENTION_STEP, "r");
  ASSERT_NE(pipe, nullptr);
  char line[256];
  std::string output;
  while (std::fgets(line, sizeof line, pipe) != nullptr) output += line;
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(output.rfind("norms: o ", 0), 0U) << output;
  EXPECT_EQ(output.find("nan"), std::string::npos) << output;
  EXPECT_NE(output.find("refused: cu_seqlens_k[2]: expected at most 160 (the rows given), got 320"),
            std::string::npos)
      << output;
}

}  // namespace
}  // namespace mxfa::examples
