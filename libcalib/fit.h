// Statistics in, the codes of a cache out.
#pragma once
#include <functional>

#include "libcalib/methods/method.h"
#include "libcalib/rotation.h"

namespace oscar {

struct FitInput {
  std::map<int, LayerStatistics> layers;       // by global id; methods without needs look at the shapes only
  std::function<SampledRows(int layer)> rows;  // read when a method trains on rows; may be empty otherwise
};
struct FitRun {
  bool allow_undersampled = false;  // fewer than 4 D tokens are refused otherwise (Wanting)
  int threads = 1;                  // layers in parallel; the result does not depend on it
  std::function<void(int64_t done, int64_t total)> progress{};  // after each layer; may be empty
  const CodewordSearch& search = cpu_search();  // of trained codebooks; the result does not depend on it
};
// What a budget chose for one item, of what it could have.
struct PlanItem {
  int layer = 0, head = 0;
  Side side = Side::K;
  std::string shape;
  double bits = 0;  // a channel
  double loss = 0;  // predicted
};
struct FitResult {
  CacheCodes codes;                   // named by the method's specification
  std::vector<FitCheck> checks;       // one a layer and side
  std::vector<std::string> warnings;  // rank deficiency, constant statistics, shared against per head
  std::vector<PlanItem> plan{};       // of methods with a budget
  double uniform_loss =
      0;  // predicted, of the best single shape for all items within the budget; 0: none fits
};

// A layer with zero tokens, non-finite or all-zero sums is std::runtime_error by name; too few tokens are
// Wanting; what the statistics cannot give (a target, scores, sampled rows, W_O) is std::invalid_argument
// that says how to get it.
FitResult fit(const FitInput& input, const Method& method, const FitRun& run);

// The rotation file of one side: orthogonal maps, or any map with its inverse, with or without means. Throws
// std::invalid_argument for codes that are more than a map of the row (codebooks) or none at all.
RotationSet rotation_set(const SideCodes& codes);
bool has_rotation_file(const SideCodes& codes);  // what rotation_set() takes

}  // namespace oscar
