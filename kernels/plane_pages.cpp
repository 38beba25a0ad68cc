#include "kernels/plane_pages.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/half.h"

namespace oscar {
namespace {

int planes_of(const int (&planes)[kPlanes], int channel) {
  int count = 0;
  while (count < kPlanes && channel < planes[count]) ++count;
  return count;
}

}  // namespace

PlaneBit plane_bit(bool keys, const int (&planes)[kPlanes], int token, int channel, int plane) {
  const bool pair = channel < planes[plane | 1], high = plane >= 2;
  const int s = pair ? channel + (high ? planes[1] : 0)
                     : channel - planes[plane | 1] + (high ? planes[0] - planes[1] : 0);
  const int per_chunk = pair ? kChunkPairs : kChunkSingles, width = pair ? 2 : 1, within = s % per_chunk,
            below = pair ? plane & 1 : 0;
  const int chunk = kPlaneChunk * (s / per_chunk + (pair ? 0 : pair_chunks(planes)));
  if (keys) {
    const int f = within / 16, t = within % 16 / 4, j = within % 4, g = token / 8, i = token % 8 / 2;
    return {chunk + 16 * (4 * g + t) + 4 * i + j, 4 * (token % 2) + width * f + below};
  }
  const int f = within / 8, g = within % 8;
  return {chunk + 16 * (4 * g + token / 16) + token % 16, width * f + below};
}

void plane_order(const uint8_t* bits, int dim, int* order) {
  std::iota(order, order + dim, 0);
  std::stable_sort(order, order + dim, [&](int a, int b) { return bits[a] > bits[b]; });
}

void plane_channels(const uint8_t* bits, int heads, int dim, int (&planes)[kPlanes]) {
  int most[kPlanes] = {};
  for (int p = 0; p < kPlanes; ++p) {
    for (int h = 0; h < heads; ++h) {
      const auto count = std::count_if(bits + h * dim, bits + (h + 1) * dim, [&](int b) { return b > p; });
      most[p] = std::max(most[p], (static_cast<int>(count) + 7) / 8 * 8);
    }
    most[p] = std::min(most[p], dim);
  }
  // A chunk of singles that is nearly empty can cost more than pairs with a bit to spare, which always fit.
  int least = 0;
  for (const int widen : {3, 0, 1, 2}) {
    int wider[kPlanes];
    std::copy_n(most, kPlanes, wider);
    if (widen & 1) wider[1] = wider[0];
    if (widen & 2) wider[3] = wider[2];
    const int bytes = plane_bytes(wider, false);
    if (plane_places(wider) > 2 * dim || (least > 0 && bytes > least)) continue;
    least = bytes;
    std::copy_n(wider, kPlanes, planes);
  }
}

Status check_levels(const CacheFormat& f, const SideFormat& side, const PlaneLevels& levels) {
  for (int h = 0; h < f.kv_heads; ++h) {
    for (int c = 0; c < f.dim; ++c) {
      if (levels.bits[h * f.dim + c] > planes_of(side.planes, c))
        return {"bit planes: a channel has more bits than there are planes that hold it"};
    }
  }
  return {};
}

void pack_planes(bool keys, const SideFormat& side, int dim, const uint8_t* codes, const float* norms,
                 int first, int n, uint8_t* block) {
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < dim; ++c) {
      for (int p = 0; p < planes_of(side.planes, c); ++p) {
        const PlaneBit at = plane_bit(keys, side.planes, first + r, c, p);
        const int bit = codes[r * dim + c] >> p & 1;
        block[at.byte] = static_cast<uint8_t>((block[at.byte] & ~(1 << at.bit)) | bit << at.bit);
      }
    }
    if (norms) {
      const uint16_t half = float_to_half(norms[r]);
      std::memcpy(block + plane_norm_byte(side.planes, first + r), &half, sizeof half);
    }
  }
}

void unpack_planes(bool keys, const SideFormat& side, int dim, const uint8_t* block,
                   const PlaneLevels& levels, int head, int first, int n, float* rows) {
  const float* steps = levels.steps + int64_t{head} * dim;
  const uint8_t* bits = levels.bits + int64_t{head} * dim;
  for (int r = 0; r < n; ++r) {
    float norm = 1;
    if (side.norm) {
      uint16_t half;
      std::memcpy(&half, block + plane_norm_byte(side.planes, first + r), sizeof half);
      norm = half_to_float(half);
    }
    for (int c = 0; c < dim; ++c) {
      int code = 0;
      for (int p = 0; p < bits[c]; ++p) {
        const PlaneBit at = plane_bit(keys, side.planes, first + r, c, p);
        code |= (block[at.byte] >> at.bit & 1) << p;
      }
      const float middle = static_cast<float>((1 << bits[c]) - 1) / 2;
      rows[r * dim + c] = (static_cast<float>(code) - middle) * steps[c] * norm;
    }
  }
}

}  // namespace oscar
