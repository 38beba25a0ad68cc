// Rules about files: their length, and golden files that somebody reads.
#include <gtest/gtest.h>

#include <regex>

#include "tests/project/sources.h"
#include "tests/support/support.h"

namespace oscar::test {
namespace {

const std::vector<std::string> everywhere{"apps",    "cmake",    "examples", "formats",
                                          "kernels", "libcalib", "libdump",  "tests"};

TEST(Files, NoneIsLongerThan500Lines) {  // a *.def is a table and may be
  const auto files = sources(everywhere, {".h", ".cpp", ".cu", ".cuh", ".sh", ".py", ".cmake"});
  EXPECT_GT(files.size(), 50u);
  for (const auto& file : files)
    EXPECT_LE(lines(file).size(), 500u) << file << ": look for the second idea in it";
}

TEST(Files, EveryGoldenFileIsReadByATestAndExplained) {
  std::string tests;
  for (const auto& file : sources({"tests"}, {".cpp", ".h"})) {
    if (file != "tests/project/files_test.cpp") tests += read(source_root() / file);
  }
  const auto readme = read(source_root() / "tests/golden/README.md");
  for (const auto& entry : fs::recursive_directory_iterator(source_root() / "tests/golden")) {
    if (!entry.is_regular_file()) continue;
    auto name = entry.path().lexically_relative(source_root() / "tests/golden").string();
    if (const auto slash = name.find('/'); slash != name.npos)
      name.resize(slash + 1);  // a folder is one thing
    if (name == "README.md") continue;
    EXPECT_NE(readme.find(name), std::string::npos)
        << "tests/golden/README.md does not say how " << name << " is made";
    if (name.starts_with("make_")) continue;
    EXPECT_NE(tests.find(name), std::string::npos) << "no test names tests/golden/" << name;
  }
}

// docs/file-formats.md names a test for each kind of fault: they exist.
TEST(Files, FaultsThatOthersMetHaveTheirTests) {
  const auto page = read(source_root() / "docs/file-formats.md");
  const auto begin = page.find("## Faults that others met");
  ASSERT_NE(begin, page.npos);
  std::string tests;
  for (const auto& file : sources({"tests"}, {".cpp"})) tests += read(source_root() / file);
  const std::regex name("`([A-Za-z0-9]+)\\.([A-Za-z0-9]+)`");
  int found = 0;
  for (std::sregex_iterator at(page.begin() + static_cast<ptrdiff_t>(begin), page.end(), name), end;
       at != end; ++at, ++found) {
    const auto suite = (*at)[1].str(), test = (*at)[2].str();
    EXPECT_NE(tests.find("(" + suite + ", " + test + ")"), std::string::npos) << suite << "." << test;
  }
  EXPECT_GT(found, 20);
}

// What the compiler sees of a test directory is every *.cpp in it, so a test whose name is misspelt would
// still be built; one in a directory that tests/CMakeLists.txt does not name would not.
TEST(Files, EveryTestDirectoryIsBuilt) {
  const auto cmake = read(source_root() / "tests/CMakeLists.txt");
  for (const auto& file : sources({"tests"}, {".cpp"})) {
    const auto directory = fs::path(file).parent_path().filename().string();
    if (directory == "support") continue;
    const bool built = cmake.find("oscar_tests(" + directory + " ") != std::string::npos ||
                       cmake.find(" " + directory + "/") != std::string::npos;
    EXPECT_TRUE(built) << file;
  }
}

}  // namespace
}  // namespace oscar::test
