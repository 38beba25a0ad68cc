// GB/s of float32 per CPU second that dequantisation yields, for every block type, on one thread: into 256
// KiB, which stay in the cache, and into 64 MiB, which do not. Best of several runs.
//
//   bench_dequant [repeats] [type]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "libdump/dequant.h"

using namespace oscar;

namespace {

int repeats = 10;
constexpr int64_t kElements = int64_t{1} << 24;

double rate(const GgmlType& type, const std::vector<std::byte>& blocks, int64_t count, float* out) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const std::clock_t start = std::clock();
    for (int64_t done = 0; done < kElements; done += count) dequantise(type, blocks.data(), count, out);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return 1e-9 * kElements * sizeof(float) / best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) repeats = std::max(1, std::atoi(argv[1]));
  std::mt19937_64 engine(1);
  std::vector<float> out(kElements);
  std::puts("            cache  memory  (GB/s)");
  for (uint32_t id = 0; id < 256; ++id) {
    const GgmlType* type = find_ggml_type(id);
    if (!type || !can_dequantise(*type) || (argc > 2 && type->name != argv[2])) continue;
    std::vector<std::byte> blocks(kElements / type->block * type->bytes);
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(engine());
    std::printf("  %-8s %7.2f %7.2f\n", std::string(type->name).c_str(),
                rate(*type, blocks, 1 << 16, out.data()), rate(*type, blocks, kElements, out.data()));
  }
}
