// From a transform and sampled rows to the trained codes of one head.
#pragma once
#include "libcalib/codebook_training.h"
#include "libcalib/methods/support.h"
#include "libcalib/transforms/klt.h"

namespace oscar {

// std::invalid_argument when codes of so many channels do not divide a row of `dim`.
void check_shape(int dim, const Shape2& shape);

// Rows divided by their fp16 RMS, weights multiplied by its square: the loss stays that of the rows.
void normalise(TrainingRows& rows, int dim);

// How options.search trains codebooks.
TrainingOptions training_options(const MethodOptions& options);

// One codebook for every shape.size consecutive channels, rounded as options.stored says. Rows are normalised first with
// options.norm, and count by weight * RMS^2 then. `seed` tells heads apart. Distortion and volume spread go
// to `fit.check`.
HeadCode vector_code(LayerFit& fit, const Klt& klt, TrainingRows rows, const Shape2& shape,
                     const MethodOptions& options, uint64_t seed);

// Of each head: F = M^1/2 E in the metric of what reads the rows (a target of K; G for values), around the
// mean of the rows that matter.
Klt attention_klt(const LayerStatistics& layer, Side side, int head, const MethodOptions& options,
                  Partition partition, int size, std::string_view name);
uint64_t head_seed(const LayerStatistics& layer, Side side, int head);

// One head of options.shape in the basis: checked, trained on the sampled rows, added to `fit`.
void add_vector_head(LayerFit& fit, const LayerStatistics& layer, Side side, int head, const Klt& basis,
                     const MethodOptions& options, std::string_view name);

// What the rows lose by a code: sum of weight * |r - r^|^2, and of weight * |r|^2.
struct Distortion {
  double error = 0, energy = 0;
};
Distortion distortion(const HeadCode& code, const TrainingRows& rows);

}  // namespace oscar
