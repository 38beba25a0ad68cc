#include "libcalib/proxy.h"

#include <algorithm>
#include <mutex>

#include "libcalib/exact_sums.h"
#include "libcalib/parallel.h"

namespace oscar {

void add_proxy(LayerSums& sums, int64_t count, int threads,
               const std::function<RowsOfSequence(int64_t)>& rows) {
  const LayerShape& shape = sums.shape();
  if (sums.tokens == 0) return;
  std::vector<Matrix> sigma_q;
  for (int h = 0; h < shape.kv_heads; ++h)
    sigma_q.push_back(sums.matrix(Sum::qq, h) / (static_cast<double>(sums.tokens) * shape.group()));
  ExactSums total(shape);
  std::mutex mutex;
  parallel_for(count, threads, [&](int64_t i) {
    const RowsOfSequence sequence = rows(i);
    LayerSums own(shape);
    own.add_proxy(sigma_q, sequence.k, sequence.v, sequence.tokens);
    const std::lock_guard lock(mutex);
    total.add(own);
  });
  const LayerSums done = total.rounded();
  for (const Sum sum : {Sum::vv_proxy, Sum::proxy_weight})
    std::ranges::copy(done.values(sum), sums.values(sum).begin());
}

}  // namespace oscar
