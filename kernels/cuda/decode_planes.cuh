// Decode over native pages of bit planes. How long a page is the format says, not the kernel.
#pragma once
#include "kernels/cuda/decode_pages.cuh"
#include "kernels/cuda/planes_tile.cuh"

namespace oscar::cuda {

struct PlaneArguments : PageArguments {
  int block_bytes, key_bytes, stage_bytes;  // of a KV head, of its keys, of a stage of the ring
  PlaneSide k, v;
};

template <int D_>
class PlaneCodes {
 public:
  using Arguments = PlaneArguments;
  static constexpr int D = D_, NT = 1, kWarps = plane_warps(D), kWeightBytes = 8 * kPlaneWeightPitch;
  static_assert(kExactTileBytes<D> == 16 * (2 * D + 16) && 4 * D <= kLeft<D, 1>);
  static_assert(4 * sizeof(PlaneQuery) <= kPlaneQueryBytes);
  static OSCAR_DEVICE int block_bytes(const Arguments& args) { return args.block_bytes; }
  static OSCAR_DEVICE int stage_bytes(const Arguments& args) { return args.stage_bytes; }

  OSCAR_DEVICE PlaneCodes(const Arguments& args, float* shared, uint32_t weights, int lane)
      : args_(args),
        made_(reinterpret_cast<PlaneQuery*>(shared)),
        table_(reinterpret_cast<uint8_t*>(shared) + kPlaneQueryBytes),
        weights_(weights),
        lane_(lane) {}
  // One head by each of four warps, for all.
  OSCAR_DEVICE void make_query(const QueryRows& rows, const float* k_mean, int kv_head, int warp) {
    if (warp >= 4) return;
    const PlaneQuery q = make_plane_query<D>(args_.k, rows, k_mean, kv_head, warp, table_, lane_);
    if (lane_ == 0) made_[warp] = q;
  }
  OSCAR_DEVICE void begin() {
    __syncthreads();
    query_ = made_[lane_ & 3];
    sums_.init();
  }
  template <bool kPartial>
  OSCAR_DEVICE void attend(uint32_t page, int first, int end, float softcap) {
    attend_planes<D, kPartial>(args_.k, args_.v, page, args_.key_bytes, shared_address(table_), query_, sums_,
                               weights_, lane_, first, end, softcap);
  }
  // own: 4 D floats of the warp's.
  OSCAR_DEVICE AttentionState<D, 1, 1>& finish(int kv_head, bool capped, const float* v_mean, float* own) {
    sums_.finish(state_, args_.v, kv_head, capped ? 0.f : query_.shift, v_mean, own, lane_);
    return state_;
  }

 private:
  const Arguments& args_;
  PlaneQuery* made_;
  uint8_t* table_;
  uint32_t weights_;
  int lane_;
  PlaneQuery query_;
  PlaneState<D> sums_;
  AttentionState<D, 1, 1> state_;
};

template <int D>
cudaError_t launch_planes_dim(const DecodeLaunch& d) {
  using Codes = PlaneCodes<D>;
  const CacheFormat& f = d.format;
  const int block_bytes = static_cast<int>(page_bytes(f) / f.kv_heads), passes = (f.group + 3) / 4;
  const auto side = [](const SideFormat& s, const PlaneLevels& levels) {
    return PlaneSide{levels.steps,
                     levels.bits,
                     {s.planes[0], s.planes[1], s.planes[2], s.planes[3]},
                     pair_chunks(s.planes),
                     single_chunks(s.planes),
                     s.norm};
  };
  const PlaneArguments args{page_arguments(d),
                            block_bytes,
                            static_cast<int>(side_bytes(f, f.k)),
                            plane_stage_bytes(D, block_bytes),
                            side(f.k, d.inputs.k_levels),
                            side(f.v, d.inputs.v_levels)};
  const int shared = plane_shared_bytes(D, block_bytes, 4);
  if (deep<Codes>(d, shared)) return launch_pages<Codes, 4, 1>(d, args, passes, shared);
  return launch_pages<Codes, 2, 2>(d, args, passes, plane_shared_bytes(D, block_bytes, 2));
}

}  // namespace oscar::cuda
