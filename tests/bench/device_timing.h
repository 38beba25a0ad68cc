// Timing of kernels on a GPU: graph replays over rotated inputs, medians.
//
//   burst    median of five replays of a graph of about 3 ms, after one to warm up
//   steady   the second half of 1.2 s of replays, when the card has reached its power limit
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/device.h"

namespace oscar::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

inline void must(Status s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.what);
  std::exit(2);
}

// Memory of its own on the device; who benchmarks one thing after the other may leak it.
template <class T>
T* on_device(const std::vector<T>& host) {
  void* memory;
  must(cuda::allocate(host.size() * sizeof(T) + 16, &memory));
  must(cuda::upload(memory, host.data(), host.size() * sizeof(T), nullptr));
  return static_cast<T*>(memory);
}

struct Timing {
  double burst = 0, steady = 0;  // microseconds a launch
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// launch(i, stream) starts one launch on rotated input i of `rotations`; it must be capturable.
template <class Launch>
Timing time_launches(Launch&& launch, int rotations, double expected_us, bool steady) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  int launches = std::max(rotations, static_cast<int>(3000 / expected_us));
  launches = (launches + rotations - 1) / rotations * rotations;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) launch(i % rotations, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&replay, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  const auto once = [&] {
    float ms;
    cudaEventRecord(begin, stream);
    check(cudaGraphLaunch(replay, stream), "replay");
    cudaEventRecord(end, stream);
    check(cudaEventSynchronize(end), "replay");
    cudaEventElapsedTime(&ms, begin, end);
    return ms * 1000.0 / launches;
  };
  once();
  Timing timing;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(once());
  timing.burst = median(times);
  if (steady) {
    times.clear();
    for (double total = 0; total < 1.2e6;) {
      const double us = once();
      total += us * launches;
      if (total > 0.6e6) times.push_back(us);
    }
    timing.steady = median(times);
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return timing;
}

// Reads `count` pieces of 16 bytes and does nothing with them: the ceiling.
static __global__ void read_only(const uint4* from, size_t count, unsigned* never) {
  unsigned x = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step * 4) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      v[k] = i + k * step < count ? __ldcs(from + i + k * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (x == 0x9e3779b9u) *never = x;
}

// Random bytes everywhere, and at the places of `period` pieces of 16 bytes from `first` on, halves between
// 2^-6 and 1.
static __global__ void fill_random(uint4* to, size_t count, unsigned seed, int period, int first) {
  const auto mix = [](unsigned x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
  };
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    unsigned v[4];
    for (int k = 0; k < 4; ++k) {
      v[k] = mix(static_cast<unsigned>(i * 4 + k) + seed);
      if (period > 0 && static_cast<int>(i % period) >= first) v[k] = (v[k] & 0x17ff17ffu) | 0x24002400u;
    }
    to[i] = make_uint4(v[0], v[1], v[2], v[3]);
  }
}

}  // namespace oscar::bench
