// Next-token distributions of a model beside those of the same model run in another way, position by
// position.
#pragma once
#include <functional>
#include <span>

#include "libcalib/end_to_end.h"
#include "libdump/models/model.h"

namespace oscar {

struct TokenLoss {
  double nats = 0;  // -log p^(the token that follows); 0 at the last position, which has none
  double kl = 0;    // KL(p || p^), nats
  bool top1 = true;
};

// Of positions [first, T). `exact` and `other` (T, hidden) are final hidden states; without `other` the exact
// model is measured alone. Logits are held for a chunk of positions a thread; everything after them is in
// double, and the result does not depend on the number of threads. `step(n)` is called from the workers when
// n positions are done.
std::vector<TokenLoss> token_losses(const Model& model, std::span<const int32_t> ids, const at::Tensor& exact,
                                    const at::Tensor* other, int64_t first, int threads,
                                    const std::function<void(int64_t)>& step);

// What it does where the hidden states are on a GPU: the same by operations on whole tensors.
std::vector<TokenLoss> token_losses_by_tensors(const Model& model, std::span<const int32_t> ids,
                                               const at::Tensor& exact, const at::Tensor* other,
                                               int64_t first, const std::function<void(int64_t)>& step);

// losses[i] are of a sequence of first + losses[i].size() tokens. Buckets begin at `first` and at every edge
// (ascending).
EndToEndResult summarise(const std::vector<std::vector<TokenLoss>>& losses, int64_t first,
                         const std::vector<int64_t>& edges);

}  // namespace oscar
