// The parts of layers.h that are something else on a GPU. Rows between products are of the run's precision.
#pragma once
#include "libdump/layers.h"

namespace oscar::on_device {

at::Tensor normed_activation(const at::Tensor& x, const at::Tensor& weight, double eps, Precision precision);
at::Tensor swiglu(const at::Tensor& gate_up);  // as layers.h has it

// Heads side by side from `column` on of what a projection gave: normalised, then turned to their positions.
struct HeadRows {
  int64_t column;
  int heads, dim;
  at::Tensor norm;        // undefined: none; (dim), or (heads * dim) for a row as a whole
  const RopeTable* rope;  // nullptr: no positions
};
// (T, heads, dim) of each, in the type of `projected`; everything between is float32.
std::vector<at::Tensor> positioned(const at::Tensor& projected, const std::vector<HeadRows>& of, double eps,
                                   int64_t position);

// layers.h's, of q (T, Hq, Dk), k (T, Hkv, Dk) and v (T, Hkv, Dv): LibTorch's fused attention where it has
// one for the shape (16 bits, Dk = Dv up to 256, no cap), else blocks of queries in float32. o is of q's type.
AttentionOutput causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const LayerShape& shape);

// The same always in float32, with a history that is read from codes (kernels/cached_attention.h): k_read
// (T, Hkv, Dk) and v_read (T, Hkv, Dv), float32, in the basis of k and v, are what their codes read as; undefined:
// nothing is coded. o (T, Hq, Dv) is of q's type.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& k_read, const at::Tensor& v_read, const Windows& windows,
                            const LayerShape& shape);

// Scores of the queries at `positions` (n, int64), a block of them for every call of `take`: logits
// (Hkv, G, n, T) float32 that a softmax takes, with the cap's slope (undefined without one) and which keys a
// query sees (n, T): causal within the layer's window, or what `visible` says of the queries at some positions.
using Visible = std::function<at::Tensor(const at::Tensor& positions)>;
struct ScoreBlock {
  int64_t first, count;
  at::Tensor logits, slope, visible;
};
void each_score_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                      const LayerShape& shape, const std::function<void(const ScoreBlock&)>& take,
                      const Visible& visible = {});

}  // namespace oscar::on_device
