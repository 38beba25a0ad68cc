// Weighted k-means: the codebooks of groups of channels.
#pragma once
#include <span>
#include <vector>

#include "libcalib/codeword_search.h"

namespace oscar {

struct TrainingOptions {
  int iterations = 10;  // Lloyd iterations over every fourth row (all rows when there are few)
  int refine = 5;    // then over all rows. Either ends early once the loss falls by less than 1e-6 of itself
  int restarts = 1;  // the best is kept: the first is seeded by splitting, others by k-means++
};
struct TrainingGroup {
  const float* rows = nullptr;  // (n, g) contiguous
  uint64_t seed = 0;            // of k-means++
};
struct TrainedCodebook {
  std::vector<float> words;  // (count, g)
  double loss = 0;           // sum of weight * |x - nearest word|^2
};
// A codebook for each group; they share weights (n) >= 0, not all zero. Splitting: from the mean, every cell along
// its channel of largest variance, until there are `count`, a power of two. A cell that loses all its rows takes
// the row that is served worst. One thread; sums in double in the order of the rows: the same inputs give the
// same bytes on every machine and by every search, whatever groups are trained together. Fewer distinct rows than
// `count` leave words that no row needs.
std::vector<TrainedCodebook> train_codebooks(std::span<const TrainingGroup> groups, const float* weights,
                                             int64_t n, int g, int count, const TrainingOptions& options,
                                             const CodewordSearch& search);

}  // namespace oscar
