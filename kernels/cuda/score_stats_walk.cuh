// Internal: tiles of a walk on their way into a ring of stages in shared memory. From sm_90 on one thread starts bulk copies
// and warps wait for each other as late as possible; before, all threads copy and all wait.
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
    if (kBulkCopies && (threadIdx.x & 31) == 0) barrier_arrive(free(stage_));
    if (++stage_ == a_.stages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  OSCAR_DEVICE uint32_t tile() const { return shared_ + a_.shared.stages + stage_ * a_.tile_bytes; }
  OSCAR_DEVICE uint32_t value_norms() const {
    return shared_ + a_.shared.value_norms + stage_ * a_.block_keys * static_cast<int>(sizeof(float));
  }

 private:
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
    const int round = m / a_.stages, stage = m - round * a_.stages, j = m / count_;
    const int64_t query_head = head_ * a_.in.group + j,
                  index = query_head * a_.tiles + first_ + m - j * count_;
    const int norm_bytes = a_.block_keys * static_cast<int>(sizeof(float));
    if constexpr (kBulkCopies) {
      if (round > 0) barrier_wait(free(stage), (round - 1) & 1);
      barrier_expect(full(stage), a_.tile_bytes + (kValues ? norm_bytes : 0));
    }
    copy(shared_ + a_.shared.stages + stage * a_.tile_bytes, a_.packed_queries + index * a_.tile_bytes,
         a_.tile_bytes, full(stage));
    if constexpr (kValues)
      copy(shared_ + a_.shared.value_norms + stage * norm_bytes,
           a_.value_norms + query_head * a_.blocks * a_.block_keys + block_key_, norm_bytes, full(stage));
  }

  const StatsArguments& a_;
  uint32_t shared_;
  int count_, block_key_, head_, first_, stage_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace oscar::cuda
