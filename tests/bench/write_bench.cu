// How long new rows take to become codes, against the time of the bytes they move: [32768, 8, 128] keys and
// values. With an argument: the rows whose name has it.
#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/plane_pages.h"
#include "kernels/write.h"
#include "tests/bench/device_timing.h"

namespace oscar {
namespace {

constexpr int64_t kTokens = 32768;
constexpr int kHeads = 8, kRotations = 8;

template <class T>
T* device_copy(const std::vector<T>& host) {
  void* memory;
  bench::check(cudaMalloc(&memory, host.size() * sizeof(T)), "memory");
  bench::check(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return static_cast<T*>(memory);
}
uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct Row {
  const char* name;
  CacheFormat format;
  WriteRule rule;
  bool rotation, keys;
};

void measure(const Row& row) {
  const CacheFormat& f = row.format;
  const int dim = f.dim;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const size_t elements = kTokens * kHeads * dim;
  std::vector<uint16_t> rows(elements);
  for (size_t i = 0; i < elements; ++i)
    rows[i] = i < 1u << 22 ? to_bf16(normal(random)) : rows[i - (1u << 22) + i % 7];
  std::vector<int64_t> slots(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) slots[i] = (i / 64 * 37 % (kTokens / 64)) * 64 + i % 64;
  std::vector<uint16_t> matrix(dim * dim);
  for (auto& x : matrix) x = to_bf16(normal(random) * 0.09f);
  std::vector<int8_t> words(size_t{kHeads} * 256 * dim);
  for (auto& x : words)
    x = static_cast<int8_t>(std::lround(std::fmax(-127, std::fmin(127, normal(random) * 45))));
  const std::vector<float> scales(kHeads * dim, 0.022f);
  std::vector<float> steps;
  std::vector<uint8_t> bits;
  for (int i = 0; i < kHeads * dim; ++i) {
    steps.push_back(0.5f + 0.05f * normal(random));
    const auto& planes = (row.keys ? f.k : f.v).planes;
    bits.push_back(
        static_cast<uint8_t>(std::count_if(planes, planes + kPlanes, [&](int n) { return i % dim < n; })));
  }

  const size_t code_bytes = f.layout == CacheLayout::native ? kTokens / 64 * page_bytes(f) : elements / 4;
  const int64_t* d_slots = device_copy(slots);
  const uint16_t* d_matrix = device_copy(matrix);
  const CodebookView book{device_copy(words), device_copy(scales)};
  const PlaneLevels levels{device_copy(steps), device_copy(bits)};
  std::vector<uint16_t*> d_rows;
  std::vector<uint8_t*> d_codes;
  std::vector<float*> d_scales;
  for (int i = 0; i < kRotations; ++i) {
    d_rows.push_back(device_copy(rows));
    d_codes.push_back(device_copy(std::vector<uint8_t>(code_bytes)));
    d_scales.push_back(device_copy(std::vector<float>(kTokens * kHeads * 2 * f.k.groups)));
  }
  const auto launch = [&](int i, cudaStream_t stream) {
    const WriteRows in{.rows = d_rows[i],
                       .tokens = kTokens,
                       .slots = d_slots,
                       .rotation = row.rotation ? d_matrix : nullptr};
    const bool native = f.layout == CacheLayout::native;
    const WriteTarget target{.keys = row.keys,
                             .pages = native ? d_codes[i] : nullptr,
                             .codes = native ? nullptr : d_codes[i],
                             .scale_zero = native ? nullptr : d_scales[i],
                             .book = book,
                             .levels = levels};
    const Status status = cuda::write(f, row.rule, in, target, stream);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.what);
      std::exit(2);
    }
  };
  const auto timing = bench::time_launches(launch, kRotations, 40, false);
  const double bytes = 2.0 * elements + static_cast<double>(kTokens) * kHeads * (dim / 4 + 8);
  std::printf("%-44s %8.1f us %7.0f GB/s\n", row.name, timing.burst, bytes / timing.burst / 1e3);
  for (int i = 0; i < kRotations; ++i) {
    cudaFree(d_rows[i]);
    cudaFree(d_codes[i]);
    cudaFree(d_scales[i]);
  }
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  using namespace oscar;
  const auto sglang = [](int dim) {
    return CacheFormat{.layout = CacheLayout::sglang, .dim = dim, .kv_heads = kHeads};
  };
  const auto native = [](int dim) { return CacheFormat{.dim = dim, .kv_heads = kHeads}; };
  const auto vectors = [](CodeKind kind, bool norm) {
    return CacheFormat{
        .dim = 128, .kv_heads = kHeads, .k = {.kind = kind, .norm = norm}, .v = {.kind = kind, .norm = norm}};
  };
  const auto planes = [](int dim, bool norm) {
    const SideFormat side{
        .kind = CodeKind::planes, .norm = norm, .planes = {dim, dim / 2 + 16, dim / 4, dim / 8}};
    return CacheFormat{.dim = dim, .kv_heads = kHeads, .k = side, .v = side};
  };
  const float step = 1.16739f, threshold = 0.98106527f;
  for (const Row& row : std::vector<Row>{
           {"sglang 128, no clip", sglang(128), {}, false, true},
           {"sglang 128, clip 0.96", sglang(128), {.clip = 0.96}, false, true},
           {"sglang 128, clip 0.92", sglang(128), {.clip = 0.92}, false, true},
           {"sglang 128, clip 0.8", sglang(128), {.clip = 0.8}, false, true},
           {"sglang 128, clip 0.96 bisected", sglang(128), {.clip = 0.96, .bisect = true}, false, true},
           {"sglang 128, Lloyd-Max", sglang(128), {.step = step, .threshold = threshold}, false, true},
           {"sglang 128, clip 0.96, rotated", sglang(128), {.clip = 0.96}, true, true},
           {"native keys 128, clip 0.96", native(128), {.clip = 0.96}, false, true},
           {"native values 128, clip 0.96", native(128), {.clip = 0.96}, false, false},
           {"native keys 128, clip 0.96, rotated", native(128), {.clip = 0.96}, true, true},
           {"native values 128, clip 0.92, rotated", native(128), {.clip = 0.92}, true, false},
           {"sglang 64, clip 0.96", sglang(64), {.clip = 0.96}, false, true},
           {"sglang 256, clip 0.96", sglang(256), {.clip = 0.96}, false, true},
           {"native keys 256, clip 0.96, rotated", native(256), {.clip = 0.96}, true, true},
           {"vectors 4x8 keys", vectors(CodeKind::vector4x8, false), {}, false, true},
           {"vectors 4x8 values", vectors(CodeKind::vector4x8, false), {}, false, false},
           {"vectors 4x8 keys, norm", vectors(CodeKind::vector4x8, true), {}, false, true},
           {"vectors 4x8 keys, rotated", vectors(CodeKind::vector4x8, false), {}, true, true},
           {"vectors 8x8 values", vectors(CodeKind::vector8x8, false), {}, false, false},
           {"planes 128 keys", planes(128, false), {}, false, true},
           {"planes 128 values", planes(128, false), {}, false, false},
           {"planes 128 keys, norm", planes(128, true), {}, false, true},
           {"planes 128 values, norm", planes(128, true), {}, false, false},
           {"planes 128 keys, norm, rotated", planes(128, true), {}, true, true},
           {"planes 128 values, norm, rotated", planes(128, true), {}, true, false},
           {"planes 128 keys, rotated, unrounded", planes(128, false), {.round_bf16 = false}, true, true},
           {"planes 64 keys, norm", planes(64, true), {}, false, true},
           {"planes 256 keys, norm", planes(256, true), {}, false, true},
           {"planes 256 keys, norm, rotated", planes(256, true), {}, true, true},
       }) {
    if (argc < 2 || std::strstr(row.name, argv[1])) measure(row);
  }
}
