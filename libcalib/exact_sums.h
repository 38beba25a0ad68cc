// The sums of a layer without rounding, so that neither the order in which sequences are added nor the number
// of workers that they were dealt to changes a bit of the result.
#pragma once
#include "libcalib/moments.h"

namespace oscar {

// Holds every sum of a layer as planes of doubles whose unevaluated total is exact: an addition leaves its
// rounding error in the next plane (two-sum: Knuth, TAOCP 2, 4.2.2; Shewchuk 1997, "Adaptive Precision
// Floating-Point Arithmetic", grow-expansion). Two or three planes hold what sequences of like size add up
// to; more are made when one is needed, and nothing is ever dropped.
class ExactSums {
 public:
  ExactSums() = default;
  explicit ExactSums(const LayerShape& shape);  // zero

  const LayerShape& shape() const { return shape_; }
  // Values must be finite. Throws std::invalid_argument when the shapes differ. Counts add up too.
  void add(const LayerSums& sums);
  void add(const ExactSums& other);

  // The doubles nearest to the exact sums, ties to even, and the counts: one result for one set of summands.
  LayerSums rounded() const;
  // What rounded() leaves: its rounding, the rounding of that, and so on, until rounded() + planes is exact.
  // Counts are zero. Empty when rounded() is exact.
  std::vector<LayerSums> remainders() const;

  static size_t planes_in_memory() { return 3; }  // of doubles, for estimates

 private:
  LayerShape shape_;
  std::vector<LayerSums> planes_;
};

}  // namespace oscar
