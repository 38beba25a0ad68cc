// Internal: how the GPU's decode over bit planes is cut, for its launcher and for the planner.
#pragma once
#include "kernels/plane_pages.h"

namespace oscar {

constexpr int plane_warps(int dim) {
  return dim > 128 ? 4 : 8;
}
// Of a warp's ring: a page of one KV head, or eight exact rows of keys and of values.
constexpr int plane_stage_bytes(int dim, int block_bytes) {
  const int exact = 16 * (2 * dim + 16);
  return ((block_bytes > exact ? block_bytes : exact) + 127) / 128 * 128;
}
inline constexpr int kPlaneQueryBytes = 64;  // of what is known of four queries beside their bytes
// Dynamic shared memory of a block: of each warp a ring, weights and what it leaves; the queries of all.
constexpr int plane_shared_bytes(int dim, int block_bytes, int stages) {
  return plane_warps(dim) * (stages * plane_stage_bytes(dim, block_bytes) + 640 + 16 * (dim + 10)) +
         16 * dim + kPlaneQueryBytes;
}
// Blocks on a multiprocessor.
constexpr int plane_resident(int dim, int block_bytes) {
  return 2 * plane_shared_bytes(dim, block_bytes, 2) <= 225 * 1024 ? 2 : 1;
}

}  // namespace oscar
