#include "kernels/codebook.h"

#include <limits>

namespace oscar {

void nearest_codeword_reference(const float* rows, int64_t stride, int64_t n, int g, const float* codebook,
                                int count, uint16_t* index, int64_t index_stride, float* distance) {
  for (int64_t r = 0; r < n; ++r) {
    const float* x = rows + r * stride;
    double best = std::numeric_limits<double>::infinity();
    int winner = 0;
    for (int c = 0; c < count; ++c) {
      double sum = 0;
      for (int i = 0; i < g; ++i) {
        const double difference = double(x[i]) - codebook[int64_t{c} * g + i];
        sum += difference * difference;
      }
      if (sum < best) {
        best = sum;
        winner = c;
      }
    }
    index[r * index_stride] = static_cast<uint16_t>(winner);
    if (distance) distance[r] = static_cast<float>(best);
  }
}

}  // namespace oscar
