#include "libdump/sinks/seeded.h"

#include <algorithm>
#include <cmath>

namespace oscar {

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t hash(uint64_t seed, uint64_t a, uint64_t b) {
  return mix(mix(mix(seed) ^ a) ^ b);
}

std::vector<int32_t> sample_positions(uint64_t seed, int64_t sequence, int64_t tokens, double share) {
  std::vector<int32_t> positions;
  const auto limit = static_cast<uint64_t>(std::ldexp(std::min(share, 1.0), 53));
  for (int64_t t = 0; t < tokens; ++t) {
    if (share >= 1 || (hash(seed, static_cast<uint64_t>(sequence), static_cast<uint64_t>(t)) >> 11) < limit)
      positions.push_back(static_cast<int32_t>(t));
  }
  return positions;
}

std::vector<RowChoice> sample_rows(uint64_t seed, const std::vector<int64_t>& lengths, int64_t count) {
  struct Ranked {
    uint64_t rank;
    RowChoice row;
  };
  std::vector<Ranked> all;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int64_t t = 0; t < lengths[s]; ++t)
      all.push_back({hash(~seed, s, static_cast<uint64_t>(t)), {static_cast<int64_t>(s), t}});
  }
  const auto kept = all.begin() + std::min<int64_t>(count, static_cast<int64_t>(all.size()));
  std::nth_element(all.begin(), kept, all.end(),
                   [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  std::vector<RowChoice> rows;
  for (auto it = all.begin(); it != kept; ++it) rows.push_back(it->row);
  std::sort(rows.begin(), rows.end(), [](const RowChoice& a, const RowChoice& b) {
    return std::pair(a.sequence, a.position) < std::pair(b.sequence, b.position);
  });
  return rows;
}

}  // namespace oscar
