#include "kernels/cuda/diagnose.cuh"

#include <algorithm>
#include <climits>
#include <vector>

#include "kernels/cuda/status.cuh"
#include "kernels/device.h"
#include "kernels/diagnose_device.h"

namespace oscar::cuda {
namespace {

// Device memory of one call; the first error stays.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  ~Arena() {
    for (void* memory : owned_) release(memory);
  }
  template <class T>
  T* array(int64_t count) {
    void* memory = nullptr;
    keep(allocate(std::max<int64_t>(count, 1) * sizeof(T) + 16, &memory));
    if (memory) owned_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  T* copy(const T* host, int64_t count) {
    T* memory = array<T>(count);
    if (status_.ok() && count > 0) keep(upload(memory, host, count * sizeof(T), nullptr));
    return memory;
  }
  template <class T>
  void back(T* host, const T* memory, int64_t count) {
    if (status_.ok()) keep(download(host, memory, count * sizeof(T), nullptr));
  }
  void keep(Status s) {
    if (status_.ok()) status_ = s;
  }
  Status status() const { return status_; }

 private:
  std::vector<void*> owned_;
  Status status_;
};

Status check(const DiagnoseProblem& p) {
  if (p.dim_k < 4 || p.dim_v < 4 || p.dim_k > 256 || p.dim_v > 256 || p.dim_k % 4 != 0 || p.dim_v % 4 != 0) {
    return {"cuda::diagnose: head dims are multiples of 4 up to 256; use the CPU"};
  }
  if (p.tokens >= 1 << 30 || (p.tokens - p.first_query) * p.group >= 1 << 30) {
    return {"cuda::diagnose: tokens, and queries of a KV head, are fewer than 2^30"};
  }
  return {};
}

const float* decoded(Arena& arena, const CodeRows& codes, int64_t first, int64_t count, int dim) {
  std::vector<float> rows(count * dim);
  if (count > 0) codes.decode(codes.self, first, count, rows.data());
  return arena.copy(rows.data(), count * dim);
}

}  // namespace

Status diagnose(const DiagnoseProblem& p, const DiagnoseResult& result) {
  if (Status s = check(p); !s.ok()) return s;
  const int64_t T = p.tokens, N = T - p.first_query, rows = N * p.group;
  if (rows <= 0) return {};
  const int64_t sink = std::clamp<int64_t>(p.sink, 0, T), recent = std::clamp<int64_t>(p.recent, 0, T + 1);
  const int64_t coded = std::max<int64_t>(0, T - recent - sink);
  std::vector<float> q(rows * p.dim_k);
  for (int64_t n = 0; n < N; ++n) {
    const float* from = p.q + (p.first_query + n) * p.q_stride;
    std::copy_n(from, p.group * p.dim_k, q.data() + n * p.group * p.dim_k);
  }
  Arena arena;
  DiagnoseArguments a{};
  a.tokens = static_cast<int>(T);
  a.first_query = static_cast<int>(p.first_query);
  a.group = p.group;
  a.dim_k = p.dim_k;
  a.dim_v = p.dim_v;
  a.rows = static_cast<int>(rows);
  a.sink = static_cast<int>(sink);
  a.recent = static_cast<int>(recent);
  a.window = p.sliding_window > 0 ? static_cast<int>(std::min(p.sliding_window, T)) : INT_MAX;
  a.coded = static_cast<int>(coded);
  a.scale = p.scale;
  a.logit_cap = p.logit_cap;
  a.q = arena.copy(q.data(), rows * p.dim_k);
  a.k = arena.copy(p.k, T * p.dim_k);
  a.v = arena.copy(p.v, T * p.dim_v);
  a.k_codes = decoded(arena, p.k_codes, sink, coded, p.dim_k);
  a.v_codes = decoded(arena, p.v_codes, sink, coded, p.dim_v);
  a.sink_logits = p.sink_logits ? arena.copy(p.sink_logits, p.group) : nullptr;
  const int64_t outputs = rows * p.dim_v;
  a.out.kl = arena.array<double>(rows);
  a.out.top1 = arena.array<uint8_t>(rows);
  a.out.logit_error = arena.array<double>(rows);
  a.out.logit_power = arena.array<double>(rows);
  for (float** o : {&a.out.o, &a.out.o_codes, &a.out.o_keys, &a.out.o_values})
    *o = arena.array<float>(outputs);
  if (!arena.status().ok()) return arena.status();

  const int width = std::max(p.dim_k, p.dim_v);
  const auto launch = width <= 64    ? launch_diagnose_64
                      : width <= 128 ? launch_diagnose_128
                                     : launch_diagnose_256;
  arena.keep(status_of(launch(a, nullptr), "launching diagnose"));
  arena.back(result.kl, a.out.kl, rows);
  arena.back(result.top1, a.out.top1, rows);
  arena.back(result.logit_error, a.out.logit_error, rows);
  arena.back(result.logit_power, a.out.logit_power, rows);
  arena.back(result.o, a.out.o, outputs);
  arena.back(result.o_codes, a.out.o_codes, outputs);
  arena.back(result.o_keys, a.out.o_keys, outputs);
  arena.back(result.o_values, a.out.o_values, outputs);
  return arena.status();
}

}  // namespace oscar::cuda
