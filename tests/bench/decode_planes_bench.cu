// Decode over bit planes on a GPU, with the plan that the library makes; see docs/performance.md.
//
//   bench_decode_planes [part of a row's name]
#include <algorithm>

#include "kernels/plane_pages.h"
#include "tests/bench/page_pool.h"

namespace oscar::bench {
namespace {

PlaneLevels levels(const CacheFormat& f, const SideFormat& side) {
  std::vector<float> steps(static_cast<size_t>(f.kv_heads * f.dim), 0.5f);
  std::vector<uint8_t> bits;
  for (int i = 0; i < f.kv_heads * f.dim; ++i) {
    const int channel = i % f.dim;
    bits.push_back(static_cast<uint8_t>(
        std::count_if(side.planes, side.planes + 4, [&](int n) { return channel < n; })));
  }
  return {on_device(steps), on_device(bits)};
}

void run(const char* only) {
  PagePool pool(only, 36);
  const auto shapes = [&](const std::string& name, int dim, int group, const SideFormat& s, bool all) {
    const CacheFormat f{CacheLayout::native, dim, 8, group, s, s};
    pool.fill(f);
    DecodeInputs in;
    in.k_levels = levels(f, f.k);
    in.v_levels = levels(f, f.v);
    pool.rows(name, f, in, all);
  };
  const auto side = [](bool norm, int a, int b, int c, int d) {
    return SideFormat{CodeKind::planes, 1, norm, {a, b, c, d}};
  };
  shapes("2 bits, 128 80 32 16", 128, 4, side(false, 128, 80, 32, 16), true);
  shapes("2 bits, norm", 128, 4, side(true, 128, 80, 32, 16), true);
  shapes("1.5 bits, 104 56 24 8", 128, 4, side(false, 104, 56, 24, 8), false);
  shapes("3 bits, 128 112 96 48", 128, 4, side(false, 128, 112, 96, 48), false);
  shapes("2 bits, 8 heads", 128, 8, side(false, 128, 80, 32, 16), false);
  shapes("2 bits, D 64, 8 heads", 64, 8, side(false, 64, 40, 16, 8), false);
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  oscar::bench::run(argc > 1 ? argv[1] : nullptr);
}
