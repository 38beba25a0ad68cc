// Internal: tiles of a walk on their way into a ring of stages in shared memory. From sm_90 on one thread starts bulk copies
// and warps wait for each other as late as possible; before, all threads copy and all wait. What is known of a tile's rows
// beside their channels each warp brings in for itself, one tile ahead: a few bytes, and what loads of a warp read comes
// by copies of its own, which is what compute-sanitizer follows.
#pragma once
#include "kernels/cuda/score_stats_tile.cuh"

namespace oscar::cuda {

OSCAR_DEVICE void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(count) : "memory");
}
OSCAR_DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
}

template <bool kValues>
class StatsWalk {
 public:
  // Tiles first .. first + count - 1 of each query head of a KV head. The caller's next barrier makes it so for all threads.
  OSCAR_DEVICE StatsWalk(const StatsArguments& a, uint32_t shared, int head, int first, int count,
                         int block_key)
      : a_(a), shared_(shared), count_(count), block_key_(block_key), head_(head), first_(first) {
    if (kBulkCopies && threadIdx.x == 0) {
      for (int stage = 0; stage < a.stages; ++stage) {
        barrier_init(full(stage), 1);
        barrier_init(free(stage), static_cast<int>(blockDim.x / 32));
      }
      for (int group = 0; group < a.warpgroups; ++group) barrier_init(keys_here(group), 1);
      barrier_init_fence();
    }
  }
  // The first queries, keys and values of one warpgroup after the other, more queries. Returns when the caller's are here.
  OSCAR_DEVICE void start(int group) {
    constexpr int kPieces = stats_pieces(kValues);
    if (total() == 0) return;
    fetch_rows(0, false);
    if (a_.stages > 1) fetch(0);
    for (int i = 0; i < a_.warpgroups; ++i) {
      const int64_t piece = static_cast<int64_t>(head_) * a_.blocks * (a_.block_keys / kTileRows) +
                            block_key_ / kTileRows + i * kPieces;
      const int key_bytes = kPieces * a_.q_tiles * kTileBlock,
                value_bytes = kPieces * a_.v_tiles * kTileBlock;
      if (kBulkCopies && threadIdx.x == 0)
        barrier_expect(keys_here(i), key_bytes + (kValues ? value_bytes : 0));
      copy(shared_ + i * key_bytes, a_.packed_keys + piece * a_.q_tiles * kTileBlock, key_bytes,
           keys_here(i));
      if constexpr (kValues)
        copy(shared_ + a_.shared.values + i * value_bytes, a_.packed_values + piece * a_.v_tiles * kTileBlock,
             value_bytes, keys_here(i));
    }
    for (int m = 1; m + 1 < a_.stages && m < total(); ++m) fetch(m);
    if constexpr (kBulkCopies) barrier_wait(keys_here(group), 0);
  }
  OSCAR_DEVICE int total() const { return count_ * a_.in.group; }
  // Tile m, the one in hand, is here.
  OSCAR_DEVICE void wait(int m) {
    if (a_.stages == 1) {
      if (!kBulkCopies && m > 0) __syncthreads();
      fetch(m);
    }
    if constexpr (kBulkCopies) {
      barrier_wait(full(stage_), phase_);
    } else {
      copy_commit();
      copy_wait<0>();
      __syncthreads();
    }
  }
  // After wait(m): begins with the tile that takes the place of the one before m.
  OSCAR_DEVICE void more(int m) {
    if (a_.stages > 1 && m + a_.stages - 1 < total()) fetch(m + a_.stages - 1);
  }
  // This warp has read all of the tile in hand: on to the next.
  OSCAR_DEVICE void advance() {
    __syncwarp();  // all lanes have read, not only the one that says so
    if (kBulkCopies && (threadIdx.x & 31) == 0) barrier_arrive(free(stage_));
    if (++stage_ == a_.stages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  OSCAR_DEVICE uint32_t tile() const { return shared_ + a_.shared.stages + stage_ * stage_bytes(); }
  // After more(m): where the WarpRows of tile m are, from the beginning of shared memory; begins with the next, which are of
  // another query head after a head's last.
  OSCAR_DEVICE int rows(int m, bool last_of_head) {
    if constexpr (kBulkCopies) {
      copy_commit();
      copy_wait<0>();
      __syncwarp();
    }
    if (m + 1 < total()) fetch_rows(m + 1, last_of_head);
    return rows_at(m);
  }

 private:
  OSCAR_DEVICE int rows_at(int m) const {
    return a_.shared.rows + (static_cast<int>(threadIdx.x / 32) * 2 + (m & 1)) * warp_rows_bytes(kValues);
  }
  OSCAR_DEVICE uint32_t full(int stage) const { return shared_ + a_.shared.barriers + 16 * stage; }
  OSCAR_DEVICE uint32_t free(int stage) const { return full(stage) + 8; }
  OSCAR_DEVICE uint32_t keys_here(int group) const { return full(kMaxStages) + 8 * group; }
  OSCAR_DEVICE void copy(uint32_t to, const void* from, int bytes, uint32_t barrier) const {
    if constexpr (kBulkCopies) {
      if (threadIdx.x == 0) bulk_copy(to, from, bytes, barrier);
    } else {
      for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        copy16(to + i, static_cast<const uint8_t*>(from) + i);
    }
  }
  OSCAR_DEVICE void fetch(int m) const {
    if (kBulkCopies && threadIdx.x != 0) return;
    const int round = m / a_.stages, stage = m - round * a_.stages;
    if constexpr (kBulkCopies) {
      if (round > 0) barrier_wait(free(stage), (round - 1) & 1);
      barrier_expect(full(stage), stage_bytes());
    }
    copy(shared_ + a_.shared.stages + stage * stage_bytes(), packed_tile(m), stage_bytes(), full(stage));
  }
  // 16 bytes a lane: rows, and from lane 16 on norms, which are those of a head.
  OSCAR_DEVICE void fetch_rows(int m, bool next_head) {
    const int lane = threadIdx.x & 31;
    const bool norms = kValues && lane >= 16;
    if (m == 0) {
      const int warp = threadIdx.x / 32;
      next_rows_ = packed_tile(0) + stage_bytes() + lane / 4 * (kTileRows * sizeof(float)) + (warp & 3) * 64 +
                   lane % 4 * 16;
      if (norms)
        next_rows_ = reinterpret_cast<const uint8_t*>(
            a_.value_norms + int64_t{head_} * a_.in.group * a_.blocks * a_.block_keys + block_key_ +
            warp / 4 * kTileRows + 4 * (lane - 16));
    } else if (!norms) {
      next_rows_ += next_head ? (a_.tiles - count_ + 1) * int64_t{a_.tile_bytes} : a_.tile_bytes;
    } else if (next_head) {
      next_rows_ += a_.blocks * a_.block_keys * sizeof(float);
    }
    if (kValues || lane < 16) copy16(shared_ + rows_at(m) + 16 * lane, next_rows_);
  }
  OSCAR_DEVICE const uint8_t* packed_tile(int m) const {
    const int j = m / count_;
    return a_.packed_queries +
           (static_cast<int64_t>(head_ * a_.in.group + j) * a_.tiles + first_ + m - j * count_) *
               a_.tile_bytes;
  }
  OSCAR_DEVICE int stage_bytes() const { return a_.tile_bytes - static_cast<int>(sizeof(TileRows)); }

  const StatsArguments& a_;
  uint32_t shared_;
  int count_, block_key_, head_, first_, stage_ = 0;
  uint32_t phase_ = 0;
  const uint8_t* next_rows_ = nullptr;
};

}  // namespace oscar::cuda
