// The nearest codewords by LibTorch's operations are those of the CPU's kernel, to the byte: on the CPU, and where there
// is one, on a GPU, by its kernel too.
#include "libdump/codeword_search.h"

#include <cmath>

#include "kernels/codebook.h"
#include "libcalib/codebook_training.h"
#include "libdump/torch_device.h"
#include "tests/support/codeword_cases.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

using test::normal;
using Words = std::vector<float>;

struct Place {
  std::string device;
  bool kernels;
  friend std::ostream& operator<<(std::ostream& out, const Place& place) {
    return out << place.device << (place.kernels ? ", kernels" : "");
  }
};

class CodewordSearchTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    try {
      const at::Device device = torch_device(GetParam().device);
      if (GetParam().kernels && !has_kernels(device)) GTEST_SKIP() << kernels_missing(device);
      search_ = torch_search(device, GetParam().kernels);
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  struct Found {
    std::vector<uint16_t> index;
    Words distance;
    bool operator==(const Found&) const = default;
  };
  // Of every second group, then of all: what was not asked for is left alone.
  void compare(const std::vector<Words>& groups, int g, const std::vector<Words>& words) const {
    const auto n = static_cast<int64_t>(groups[0].size()) / g;
    const int count = static_cast<int>(words[0].size()) / g;
    SCOPED_TRACE(testing::Message() << n << " rows, g " << g << ", " << count << " codewords");
    std::vector<const float*> pointers;
    for (const Words& group : groups) pointers.push_back(group.data());
    for (const size_t step : {2u, 1u}) {
      const Found untouched{std::vector<uint16_t>(static_cast<size_t>(n), 7),
                            Words(static_cast<size_t>(n), -1)};
      std::vector<Found> expected(groups.size(), untouched), found = expected;
      std::vector<SearchedRows::Search> searches;
      for (size_t i = 0; i < groups.size(); i += step) {
        nearest_codeword_reference(pointers[i], g, n, g, words[i].data(), count, expected[i].index.data(), 1,
                                   expected[i].distance.data());
        searches.push_back(
            {static_cast<int>(i), words[i].data(), found[i].index.data(), found[i].distance.data()});
      }
      search_->hold(pointers, n, g)->nearest(count, searches);
      for (size_t i = 0; i < groups.size(); ++i) EXPECT_TRUE(found[i] == expected[i]) << "group " << i;
    }
  }
  void compare(const Words& rows, int g, const Words& words) const {
    compare(std::vector<Words>{rows, normal(rows.size(), 99)}, g, {words, normal(words.size(), 98)});
  }
  std::unique_ptr<CodewordSearch> search_;
};

TEST_P(CodewordSearchTest, SizesAndCounts) {
  for (const int g : {1, 2, 3, 4, 8, 17, 64}) {
    for (const int count : {1, 2, 33, 256})
      compare(normal(static_cast<size_t>(300 * g), 1), g, normal(static_cast<size_t>(count * g), 2));
  }
  compare(normal(30 * 4, 5), 4, normal(65536 * 4, 6));
  compare(normal(4, 7), 4, normal(256 * 4, 8));
  std::vector<Words> rows, words;  // more than one step of scores
  for (uint64_t i = 0; i < 17; ++i) {
    rows.push_back(normal(20000 * 4, i));
    words.push_back(normal(256 * 4, 100 + i));
  }
  compare(rows, 4, words);
}

TEST_P(CodewordSearchTest, HardCases) {
  for (const test::CodewordCase& c : test::hard_codeword_cases()) {
    SCOPED_TRACE(c.name);
    compare(c.rows, c.g, c.words);
  }
}

// With restarts, cells that end early, and one group whose few rows leave cells empty.
TEST_P(CodewordSearchTest, CodebooksAreTheCpus) {
  constexpr int64_t kRows = 2000;
  std::vector<Words> rows;
  std::vector<TrainingGroup> groups;
  for (uint64_t i = 0; i < 5; ++i) {
    rows.push_back(normal(kRows * 4, i, std::exp(static_cast<float>(i))));
    if (i == 3) {
      for (size_t j = 40; j < rows[i].size(); ++j) rows[i][j] = rows[i][j % 40];
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) groups.push_back({rows[i].data(), 5 * i});
  Words weights = normal(kRows, 50);
  for (float& weight : weights) weight = std::exp(weight);
  const TrainingOptions options{.iterations = 10, .refine = 8, .restarts = 2};
  const auto expected = train_codebooks(groups, weights.data(), kRows, 4, 32, options, cpu_search());
  const auto found = train_codebooks(groups, weights.data(), kRows, 4, 32, options, *search_);
  ASSERT_EQ(found.size(), groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(found[i].words, expected[i].words) << i;
    EXPECT_EQ(found[i].loss, expected[i].loss) << i;
    const auto alone = train_codebooks({&groups[i], 1}, weights.data(), kRows, 4, 32, options, cpu_search());
    EXPECT_EQ(alone[0].words, expected[i].words) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Places, CodewordSearchTest,
                         testing::Values(Place{"cpu", false}, Place{"cuda", false}, Place{"cuda", true}),
                         [](const auto& info) {
                           const Place& place = info.param;
                           return place.device == "cpu" ? "OnACpu"
                                  : place.kernels       ? "OnAGpuByKernels"
                                                        : "OnAGpu";
                         });

}  // namespace
}  // namespace oscar
