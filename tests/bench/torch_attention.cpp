#include "tests/bench/torch_attention.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

namespace oscar::test {

struct TorchAttention::Tensors {
  at::Tensor q, k, v;
};

TorchAttention::TorchAttention(int kv_heads, int group, int dim, int tokens, bool bf16, bool stacked) {
  const auto type = bf16 ? at::kBFloat16 : at::kFloat;
  const auto make = [&](int heads, int rows) { return at::randn({1, heads, rows, dim}).to(type); };
  tensors_ = std::make_unique<Tensors>(Tensors{stacked ? make(kv_heads, group) : make(kv_heads * group, 1),
                                               make(kv_heads, tokens), make(kv_heads, tokens)});
}
TorchAttention::~TorchAttention() = default;

void TorchAttention::run() const {
  const c10::InferenceMode guard;
  at::scaled_dot_product_attention(tensors_->q, tensors_->k, tensors_->v, {}, 0.0, false, std::nullopt,
                                   tensors_->q.size(1) != tensors_->k.size(1));
}
bool TorchAttention::present() {
  return true;
}

}  // namespace oscar::test
