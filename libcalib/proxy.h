// The second pass over a layer's k and v, when Sigma_Q of all its queries is known: vv_proxy and
// proxy_weight.
#pragma once
#include <functional>
#include <memory>

#include "libcalib/moments.h"

namespace oscar {

// k (T, Hkv, Dk) and v (T, Hkv, Dv) of one sequence; `owner` keeps them alive.
struct RowsOfSequence {
  int64_t tokens = 0;
  const float *k = nullptr, *v = nullptr;
  std::shared_ptr<const void> owner{};
};

// Puts sum_t c_t v_t^T v_t and sum_t c_t of every sequence, c_t = k_t Sigma_Q k_t^T, into `sums`, from whose
// qq Sigma_Q is. Each sequence is summed alone and the sequences exactly, so the result depends neither on
// their order nor on `threads`. rows(i), i in [0, count), is called from up to `threads` threads.
void add_proxy(LayerSums& sums, int64_t count, int threads,
               const std::function<RowsOfSequence(int64_t)>& rows);

}  // namespace oscar
