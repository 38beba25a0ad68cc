// Who may include whom (docs/dataflow.md). Left may include right, never back; a third party has one place.
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/project/sources.h"

namespace oscar::test {
namespace {

const std::map<std::string, std::set<std::string>> may_include{
    {"formats", {"formats"}},
    {"kernels", {"kernels"}},
    {"libcalib", {"libcalib", "kernels", "formats"}},
    {"libdump", {"libdump", "libcalib", "kernels", "formats"}},
    {"apps", {"apps", "libdump", "libcalib", "kernels", "formats"}},
    {"examples", {"libdump", "libcalib", "kernels", "formats"}},
};

// Header prefix of a third party, and the prefixes of the files that may include it.
const std::vector<std::pair<std::string, std::vector<std::string>>> third_parties{
    {"ATen/", {"libdump/"}},
    {"torch/", {"libdump/"}},
    {"c10/", {"libdump/"}},
    {"hdf5", {"formats/hdf5"}},
    {"H5", {"formats/hdf5"}},
    {"zlib.h", {"formats/"}},
    {"Eigen/", {"libcalib/"}},
    {"cuda", {"kernels/cuda/"}},
    {"immintrin.h", {"kernels/", "formats/x86/"}},
    {"cpuid.h", {"formats/x86/"}},
    {"omp.h", {"kernels/", "apps/", "examples/"}},  // mains only set the number of threads
    {"CLI/", {"apps/"}},
    {"pcre2", {"libdump/tokenizer/"}},
    {"utf8proc", {"libdump/tokenizer/"}},
    {"fmt/", {""}},
    {"nlohmann/", {""}},
    {"malloc.h", {"libdump/"}},  // glibc, which LibTorch's wheels need anyway
    {"sys/", {""}},              // POSIX
};
const std::set<std::string> posix{"dlfcn.h", "fcntl.h", "signal.h", "unistd.h", "poll.h"};

// Why `file` must not include `header`, or "".
std::string breach(const std::string& file, const std::string& header, bool quoted) {
  const auto top = file.substr(0, file.find('/'));
  if (quoted) {
    const auto to = header.substr(0, header.find('/'));
    if (!may_include.contains(to)) return "includes are written from the root of the project";
    return may_include.at(top).contains(to) ? "" : top + "/ may not include " + to + "/";
  }
  for (const auto& [prefix, places] : third_parties) {
    if (!header.starts_with(prefix)) continue;
    for (const auto& place : places) {
      if (file.starts_with(place)) return "";
    }
    return prefix + "… belongs in " + places.front() + " alone";
  }
  const bool standard = header.find('/') == std::string::npos && header.find('.') == std::string::npos;
  return standard || posix.contains(header) ? "" : "an unknown third party: add it to the table here and in docs/dataflow.md";
}

TEST(Layering, AcceptsWhatIsAllowedAndRefusesTheRest) {
  EXPECT_EQ(breach("libcalib/fit.cpp", "formats/error.h", true), "");
  EXPECT_EQ(breach("libdump/layers.cpp", "ATen/ATen.h", false), "");
  EXPECT_EQ(breach("formats/hdf5_reader.cpp", "hdf5.h", false), "");
  EXPECT_EQ(breach("kernels/int2.h", "cstdint", false), "");
  EXPECT_NE(breach("formats/pt.cpp", "libcalib/types.h", true), "");
  EXPECT_NE(breach("kernels/gram.cpp", "formats/error.h", true), "");
  EXPECT_NE(breach("libcalib/fit.cpp", "libdump/dump.h", true), "");
  EXPECT_NE(breach("libcalib/fit.cpp", "fit.h", true), "");
  EXPECT_NE(breach("apps/oscar-dump.cpp", "ATen/ATen.h", false), "");
  EXPECT_NE(breach("libdump/corpus.cpp", "Eigen/Core", false), "");
  EXPECT_NE(breach("formats/npy.cpp", "hdf5.h", false), "");
  EXPECT_NE(breach("formats/npy.cpp", "boost/any.hpp", false), "");
}

TEST(Layering, EveryIncludeOfTheProject) {
  const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  size_t checked = 0;
  for (const auto& file : sources({"formats", "kernels", "libcalib", "libdump", "apps", "examples"}, {".h", ".cpp", ".cu", ".cuh", ".def"})) {
    int number = 0;
    for (const auto& line : lines(file)) {
      ++number;
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      ++checked;
      const auto why = breach(file, match[2], match[1] == "\"");
      EXPECT_EQ(why, "") << file << ":" << number << ": " << line;
    }
  }
  EXPECT_GT(checked, 100u);
}

// An optional dependency is a stub file chosen by the build.
TEST(Layering, CallersHaveNoConditionalCode) {
  const std::regex conditional(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b)");
  for (const auto& file : sources({"formats", "libcalib", "libdump", "apps", "examples"}, {".h", ".cpp"})) {
    int number = 0;
    for (const auto& line : lines(file)) {
      ++number;
      EXPECT_FALSE(std::regex_search(line, conditional)) << file << ":" << number << ": " << line;
    }
  }
}

// Libraries throw: they do not print, exit or assert.
TEST(Layering, LibrariesNeitherPrintNorExit) {
  const std::regex banned(R"((\b(exit|_exit|abort|printf|fprintf|puts|assert|TORCH_CHECK)\s*\()|std::c(out|err)|fmt::print)");
  for (const auto& file : sources({"formats", "kernels", "libcalib", "libdump"}, {".h", ".cpp"})) {
    int number = 0;
    for (const auto& line : lines(file)) {
      ++number;
      const auto code = line.substr(0, line.find("//"));
      EXPECT_FALSE(std::regex_search(code, banned)) << file << ":" << number << ": " << line;
    }
  }
}

}  // namespace
}  // namespace oscar::test
