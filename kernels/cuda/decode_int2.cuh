// Decode over native pages of INT2 codes.
#pragma once
#include "kernels/cuda/decode_pages.cuh"
#include "kernels/cuda/int2_native.cuh"
#include "kernels/int2_launch.h"

namespace oscar::cuda {

template <class Shape, int kWarps_>
class Int2Codes {
  using Page = NativePage<Shape>;

 public:
  using Arguments = PageArguments;
  static constexpr int D = Shape::D, NT = Shape::NT, kWarps = kWarps_, kWeightBytes = Shape::kWeightBytes;
  static_assert(kExactTileBytes<D> <= Page::kBytes && (2 * Page::kBytes + kWeightBytes) % 128 == 0);
  static constexpr OSCAR_DEVICE int block_bytes(const Arguments&) { return Page::kBytes; }
  static constexpr OSCAR_DEVICE int stage_bytes(const Arguments&) { return Page::kBytes; }
  static constexpr int shared_bytes(int stages) {
    return kWarps * (stages * Page::kBytes + kWeightBytes + 4 * kLeft<D, NT>);
  }

  OSCAR_DEVICE Int2Codes(const Arguments&, float*, uint32_t weights, int lane)
      : weights_(weights), lane_(lane) {}
  OSCAR_DEVICE void make_query(const QueryRows& rows, const float* k_mean, int, int) {
    LoadedQuery<Shape> loaded;
    load_query<Shape, Page>(loaded, rows, lane_);
    cuda::make_query<Shape, Page>(query_, loaded, rows, k_mean, lane_);
  }
  OSCAR_DEVICE void begin() { state_.init(); }
  template <bool kPartial>
  OSCAR_DEVICE void attend(uint32_t page, int first, int end, float softcap) {
    attend_tile<Shape, kPartial>(Page{page, lane_}, query_, state_, weights_, lane_, first, end, softcap);
  }
  OSCAR_DEVICE AttentionState<D, NT, Shape::G>& finish(int, bool capped, const float* v_mean, float*) {
    if (capped) {
#pragma unroll
      for (int n = 0; n < NT; ++n) query_.shift[n] = 0.f;
    }
    state_.template finish_codes<Page>(lane_, query_.shift, v_mean);
    return state_;
  }

 private:
  uint32_t weights_;
  int lane_;
  Int2Query<Shape> query_;
  AttentionState<D, NT, Shape::G> state_;
};

template <class Shape, int kWarps, int kResident>
cudaError_t launch_native(const DecodeLaunch& d, int passes) {
  using Codes = Int2Codes<Shape, kWarps>;
  const PageArguments args = page_arguments(d);
  if constexpr (kResident == 2) {
    if (deep<Codes>(d, Codes::shared_bytes(4)))
      return launch_pages<Codes, 4, 1>(d, args, passes, Codes::shared_bytes(4));
  }
  return launch_pages<Codes, 2, kResident>(d, args, passes, Codes::shared_bytes(2));
}

template <int D, int G>
cudaError_t launch_native_dim(const DecodeLaunch& d) {
  constexpr Int2Launch kOne = int2_native_launch(D, G, 1), kTwo = int2_native_launch(D, G, 8);
  const int passes = int2_native_launch(D, G, d.format.group).passes;
  if constexpr (kTwo.tiles == 2) {
    if (d.format.group > 4) return launch_native<Int2Shape<D, G, 2>, kTwo.warps, kTwo.resident>(d, passes);
  }
  return launch_native<Int2Shape<D, G, 1>, kOne.warps, kOne.resident>(d, passes);
}

}  // namespace oscar::cuda
