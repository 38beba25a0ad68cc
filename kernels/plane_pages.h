// Native pages of bit planes: a channel has 0 to 4 bits, of its own in every KV head (method awsq).
//
// Channel c of b bits has the levels (i - (2^b - 1) / 2) step, i = 0..2^b - 1; bit p of i is its bit in plane
// p. The channels of a cache are sorted by falling bits, so that a plane is a prefix of them. That order is
// the engine's, part of the rotation into the cache's basis (plane_order(): columns of R, rows of its
// inverse; exact rows and means are in that basis anyway). Every head has room for planes[p] channels in
// plane p, the most that any head needs (plane_channels()), so that all blocks are equally long; bits that a
// head does not have are 0.
//
// Of channels with planes 0 and 1, or 2 and 3, the two bits are neighbours, a pair; what is left are singles:
//
//   place of a pair     s < planes[1]: planes 0 and 1 of channel s; from there on planes 2 and 3 of channel
//                       s - planes[1]; planes[1] + planes[3] in all
//   place of a single   s < planes[0] - planes[1]: plane 0 of channel planes[1] + s; from there on plane 2 of
//                       channel planes[3] + s - (planes[0] - planes[1]); planes[2] - planes[3] of those
//
// One block holds 64 tokens of one side (keys or values) of one KV head:
//
//   chunks of 32 pairs, 512 bytes each | chunks of 64 singles, 512 bytes each | with `norm`: 64 float16, the
//   factor of each token's row, not negative, in the order of the tokens
//
// in the order in which a warp of a GPU reads them: every 16 bytes are one lane's load, and a mask makes them
// operands of the matrix unit. Lane = 4 g + t; g in 0..7; t, i, j in 0..3; h in 0, 1; place within the chunk.
//
//   keys    bits 4 h .. 4 h + 3 of byte 16 (4 g + t) + 4 i + j are of token 8 g + 2 i + h:
//             pair 16 f + 4 t + j in bits 4 h + 2 f and above it (f = 0, 1)
//             single 16 f + 4 t + j in bit 4 h + f               (f = 0..3)
//   values  byte 16 (4 g + t) + b is of token 16 t + b, b in 0..15:
//             pair 8 f + g in bits 2 f and above it              (f = 0..3)
//             single 8 f + g in bit f                            (f = 0..7)
//
// Planes of 128, 80, 32 and 16 channels are 3 chunks of pairs and one of singles: 2 bits an element of D =
// 128, and with `norm` 1/8 bit more.
#pragma once
#include <cstdint>

#include "kernels/decode.h"

namespace oscar {

inline constexpr int kPlanes = 4, kPlaneLevels = 1 << kPlanes;
inline constexpr int kPlaneChunk = 512, kChunkPairs = 32, kChunkSingles = 64;

constexpr int pair_chunks(const int (&planes)[kPlanes]) {
  return (planes[1] + planes[3] + kChunkPairs - 1) / kChunkPairs;
}
constexpr int single_chunks(const int (&planes)[kPlanes]) {
  return (planes[0] - planes[1] + planes[2] - planes[3] + kChunkSingles - 1) / kChunkSingles;
}
constexpr int plane_bytes(const int (&planes)[kPlanes], bool norm) {
  return kPlaneChunk * (pair_chunks(planes) + single_chunks(planes)) + (norm ? 128 : 0);
}

// Places, used or not: at most 2 dim in a format.
constexpr int plane_places(const int (&planes)[kPlanes]) {
  return kChunkPairs * pair_chunks(planes) + kChunkSingles * single_chunks(planes);
}

// What a place holds: bits from plane `plane` on of a channel, which weigh 2^plane; channel -1: nothing.
struct PlanePlace {
  int channel, plane;
};
constexpr PlanePlace pair_place(const int (&planes)[kPlanes], int s) {
  const int high = s - planes[1];
  return high < 0 ? PlanePlace{s, 0} : high < planes[3] ? PlanePlace{high, 2} : PlanePlace{-1, 0};
}
constexpr PlanePlace single_place(const int (&planes)[kPlanes], int s) {
  const int high = s - (planes[0] - planes[1]);
  return high < 0                       ? PlanePlace{planes[1] + s, 0}
         : high < planes[2] - planes[3] ? PlanePlace{planes[3] + high, 2}
                                        : PlanePlace{-1, 0};
}

// Where the bit of a channel in a plane that has it is: byte from the start of the block, bit of the byte.
struct PlaneBit {
  int byte, bit;
};
PlaneBit plane_bit(bool keys, const int (&planes)[kPlanes], int token, int channel, int plane);
// Where the norm of a token is.
constexpr int plane_norm_byte(const int (&planes)[kPlanes], int token) {
  return plane_bytes(planes, false) + 2 * token;
}

// order[i]: which of `dim` channels of the given bits becomes channel i of the cache. Ties keep their order.
void plane_order(const uint8_t* bits, int dim, int* order);
// Channels of each plane for heads of the given bits (heads, dim), in any order: those that give the fewest
// bytes.
void plane_channels(const uint8_t* bits, int heads, int dim, int (&planes)[kPlanes]);

// Host memory: whether all heads have the bits that the planes have room for.
Status check_levels(const CacheFormat& format, const SideFormat& side, const PlaneLevels& levels);

// Codes i (n, dim), each of as many bits as there are planes of its channel at most, and, with a norm, norms
// (n), into the tokens [first, first + n) of a block, n at most 64 - first. Norms are rounded to float16. The
// rest of the block is left alone.
void pack_planes(bool keys, const SideFormat& side, int dim, const uint8_t* codes, const float* norms,
                 int first, int n, uint8_t* block);
// The way back: rows (n, dim) are level * norm.
void unpack_planes(bool keys, const SideFormat& side, int dim, const uint8_t* block,
                   const PlaneLevels& levels, int head, int first, int n, float* rows);

}  // namespace oscar
