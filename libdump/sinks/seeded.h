// Seeded choices that depend on (seed, sequence, position) alone: not on threads, not on the standard
// library.
#pragma once
#include <cstdint>
#include <vector>

namespace oscar {

// splitmix64 of the three, uniform over 64 bits.
uint64_t hash(uint64_t seed, uint64_t a, uint64_t b);

// Positions of a sequence whose hash falls below `share`, ascending; share 1 gives all of them.
std::vector<int32_t> sample_positions(uint64_t seed, int64_t sequence, int64_t tokens, double share);

struct RowChoice {
  int64_t sequence, position;
};
// `count` tokens of the corpus without replacement (all of them when there are fewer), in corpus order.
std::vector<RowChoice> sample_rows(uint64_t seed, const std::vector<int64_t>& lengths, int64_t count);

}  // namespace oscar
