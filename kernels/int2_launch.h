// Internal: how the GPU's decode over INT2 codes is cut, for its launchers and for the planner.
#pragma once
#include <cstdint>

namespace oscar {

struct Int2Launch {
  int tiles;     // of four query heads that one pass over the codes answers
  int passes;    // over the same codes, side by side
  int warps;     // of a block
  int resident;  // blocks on a multiprocessor
};
// Two tiles where registers allow; four warps where a page is large; two blocks where shared memory (227 KiB)
// allows.
constexpr Int2Launch int2_native_launch(int dim, int groups, int group) {
  const int tiles = dim <= 128 && group > 4 ? 2 : 1, warps = dim > 128 ? 4 : 8;
  const int page = 32 * dim + 512 * groups,
            shared = warps * (2 * page + 640 * tiles + 16 * tiles * (dim + 10));
  const bool registers = tiles == 1 || dim == 64;
  return {tiles, (group + 4 * tiles - 1) / (4 * tiles), warps, registers && 2 * shared <= 225 * 1024 ? 2 : 1};
}
constexpr Int2Launch int2_sglang_launch(int dim, int group) {
  const int tiles = dim <= 128 && group > 4 ? 2 : 1;
  return {tiles, (group + 4 * tiles - 1) / (4 * tiles), 8, dim <= 128 && tiles == 1 ? 2 : 1};
}

}  // namespace oscar
