// Letters, once: L layers, T tokens, Hq query heads, Hkv KV heads, H = Hq / Hkv query heads that share a KV head,
// D head dim. Rows are tokens and maps act on the right: k R.
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <string>
#include <vector>

namespace oscar {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using MatrixMap = Eigen::Map<Matrix>;
using ConstMatrixMap = Eigen::Map<const Matrix>;
using VectorMap = Eigen::Map<Vector>;
using ConstVectorMap = Eigen::Map<const Vector>;

enum class Side : uint8_t { K, V };
constexpr const char* side_name(Side side) { return side == Side::K ? "k" : "v"; }

// Geometry of one layer's attention; `layer` is the global decoder index.
struct LayerShape {
  int layer = 0;
  int q_heads = 0, kv_heads = 0;
  int dim_k = 0, dim_v = 0;
  double scale = 0;              // of q.k before the softmax
  int64_t sliding_window = 0;    // keys a query sees, itself included; 0: all
  double logit_cap = 0;          // the softmax takes cap tanh(l / cap), l = scale q.k; 0: l itself
  // (Hq) learned logits that the softmax counts beside the keys and that have no value ("sinks" of gpt-oss); empty:
  // none. Not the first tokens of Windows::sink.
  std::vector<float> sink_logits{};
  bool operator==(const LayerShape&) const = default;
  int group() const { return q_heads / kv_heads; }
  int dim(Side side) const { return side == Side::K ? dim_k : dim_v; }
  // Of the query heads that share a KV head, (H); nullptr: none.
  const float* sinks_of(int kv_head) const {
    return sink_logits.empty() ? nullptr : sink_logits.data() + int64_t{kv_head} * group();
  }
};

// Hist(t) = { s : sink <= s <= t - recent }: what a mixed cache quantises for the query at t.
struct Windows {
  int64_t sink = 64, recent = 256;
  bool operator==(const Windows&) const = default;
};

}  // namespace oscar
