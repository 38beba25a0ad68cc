// Norms of heads and rotary positions. Lanes are dealt out to (job, head, sixteen elements) of a row; a lane's
// sixteen are eight pairs, so that nothing but a norm crosses lanes.
#include "kernels/cuda/forward_rows.cuh"
#include "kernels/cuda/status.cuh"
#include "kernels/forward_device.h"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 128, kJobs = 3;

struct RotaryArguments {
  RotaryRows job[kJobs];
  int end[kJobs];    // of a job's lanes in a row: multiples of 32, so that a warp has one job
  int shift[kJobs];  // log2 of the lanes of a head
};

OSCAR_DEVICE int job_of(const RotaryArguments& a, int lane) {
  return (lane >= a.end[0]) + (lane >= a.end[1]);
}

OSCAR_DEVICE void turn(float& x, float& y, float cos, float sin) {
  const float before = x;
  x = before * cos - y * sin;
  y = y * cos + before * sin;
}

// kThreads lanes of a row. Grid: rows, lanes / kThreads.
__global__ void __launch_bounds__(kThreads, 10) rotary_kernel(const RotaryArguments a) {
  const int64_t row = blockIdx.x;
  const int lane = blockIdx.y * kThreads + threadIdx.x, which = job_of(a, lane);
  if (lane >= a.end[kJobs - 1]) return;  // whole warps
  const RotaryRows& job = a.job[which];
  const int own = lane - (which > 0 ? a.end[which - 1] : 0), head = own >> a.shift[which],
            slot = own & ((1 << a.shift[which]) - 1);
  const bool present = head < job.heads && slot < job.dim / 16;
  // Eights of a head: two that meet, or neighbours.
  const int half = job.cos && !job.neighbours ? job.rotary_dim / 16 : 0;
  const int first = slot < half ? slot : 2 * slot, second = slot < half ? slot + half : 2 * slot + 1;
  const bool turned = present && job.cos && 16 * slot < (job.neighbours ? job.rotary_dim : 16 * half);
  uint4 x = {}, y = {};
  float c[8] = {}, s[8] = {};
  if (present) {
    const auto* in = static_cast<const uint16_t*>(job.in) + row * job.in_stride + job.column + head * job.dim;
    x = __ldcs(reinterpret_cast<const uint4*>(in + 8 * first));
    y = __ldcs(reinterpret_cast<const uint4*>(in + 8 * second));
  }
  if (turned) {  // before the norm, so that nothing waits twice
    const int64_t angle = row * (job.rotary_dim / 2) + 8 * slot;
    load8(c, job.cos + angle);
    load8(s, job.sin + angle);
  }
  unsigned words[2][4] = {{x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w}};
  float inverse = 1;
  if (job.norm) {
    float power = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 pair = unpack(words[i / 4][i % 4]);
      power += pair.x * pair.x + pair.y * pair.y;
    }
    for (int distance = 1 << a.shift[which] >> 1; distance > 0; distance >>= 1)
      power += __shfl_xor_sync(kWarp, power, distance);
    inverse = rsqrtf(power / static_cast<float>(job.dim) + static_cast<float>(job.eps));
  }
  if (!present) return;
#pragma unroll
  for (int part = 0; part < 2; ++part) {  // four of each eight: registers
    float v[2][4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 pair = unpack(words[e][2 * part + i]);
        v[e][2 * i] = pair.x;
        v[e][2 * i + 1] = pair.y;
      }
      if (job.norm) {
        const float4 w =
            *reinterpret_cast<const float4*>(job.norm + 8 * (e == 0 ? first : second) + 4 * part);
        v[e][0] *= inverse * w.x;
        v[e][1] *= inverse * w.y;
        v[e][2] *= inverse * w.z;
        v[e][3] *= inverse * w.w;
      }
    }
    if (turned && job.neighbours) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          turn(v[e][2 * i], v[e][2 * i + 1], c[4 * e + 2 * part + i], s[4 * e + 2 * part + i]);
      }
    } else if (turned) {
#pragma unroll
      for (int i = 0; i < 4; ++i) turn(v[0][i], v[1][i], c[4 * part + i], s[4 * part + i]);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int i = 0; i < 2; ++i) words[e][2 * part + i] = pack(v[e][2 * i], v[e][2 * i + 1]);
    }
  }
  auto* out = static_cast<uint16_t*>(job.out) + (row * job.heads + head) * job.dim;
  *reinterpret_cast<uint4*>(out + 8 * first) = make_uint4(words[0][0], words[0][1], words[0][2], words[0][3]);
  *reinterpret_cast<uint4*>(out + 8 * second) =
      make_uint4(words[1][0], words[1][1], words[1][2], words[1][3]);
}

// Any shape: a warp a head, an element a lane. A job's lanes are 32 a head.
__global__ void __launch_bounds__(kThreads) rotary_any_kernel(const RotaryArguments a) {
  const int64_t row = blockIdx.x;
  const int at = blockIdx.y * kThreads + threadIdx.x, which = job_of(a, at), lane = threadIdx.x & 31;
  if (at >= a.end[kJobs - 1]) return;
  const RotaryRows& job = a.job[which];
  const int head = (at - (which > 0 ? a.end[which - 1] : 0)) / 32;
  const auto* in = static_cast<const uint16_t*>(job.in) + row * job.in_stride + job.column + head * job.dim;
  auto* out = static_cast<uint16_t*>(job.out) + (row * job.heads + head) * job.dim;
  const auto value = [&](int i) { return __uint_as_float(static_cast<unsigned>(in[i]) << 16); };
  float inverse = 1;
  if (job.norm) {
    float power = 0;
    for (int i = lane; i < job.dim; i += 32) power += value(i) * value(i);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) power += __shfl_xor_sync(kWarp, power, distance);
    inverse = rsqrtf(power / static_cast<float>(job.dim) + static_cast<float>(job.eps));
  }
  const auto normed = [&](int i) { return job.norm ? value(i) * (inverse * job.norm[i]) : value(i); };
  const int rotated = job.cos ? job.rotary_dim : 0, half = rotated / 2;
  for (int i = lane; i < job.dim; i += 32) {
    float y = normed(i);
    if (i < rotated) {
      const bool is_first = job.neighbours ? i % 2 == 0 : i < half;
      const int other = job.neighbours ? i ^ 1 : is_first ? i + half : i - half;
      const int64_t angle = row * half + (job.neighbours ? i / 2 : i % half);
      y = y * job.cos[angle] + (is_first ? -normed(other) : normed(other)) * job.sin[angle];
    }
    out[i] = static_cast<uint16_t>(pack(y, 0));
  }
}

bool in_sixteens(const RotaryRows& job) {
  return job.dim % 16 == 0 && job.column % 8 == 0 && job.in_stride % 8 == 0 &&
         (!job.cos || job.rotary_dim % 16 == 0);
}
Status check(const RotaryRows& job) {
  if (!job.in || !job.out) return {"cuda::rotary: in and out must be given"};
  if (job.heads < 1 || job.heads > 65536 || job.dim < 1 || job.dim > 512)
    return {"cuda::rotary: no heads, or more than 512 elements"};
  if (!job.cos != !job.sin) return {"cuda::rotary: cos and sin come together"};
  if (job.cos && (job.rotary_dim < 2 || job.rotary_dim > job.dim || job.rotary_dim % 2 != 0))
    return {"cuda::rotary: rotary_dim is even and at most dim"};
  if (job.rows < 0 || job.rows > 0x7fffffff) return {"cuda::rotary: rows are fewer than 2^31"};
  return {};
}

}  // namespace

Status rotary(const RotaryRows* jobs, int count, void* stream) {
  if (!jobs || count < 1 || count > kJobs) return {"cuda::rotary: one, two or three jobs"};
  bool sixteens = true;
  for (int j = 0; j < count; ++j) {
    if (Status s = check(jobs[j]); !s.ok()) return s;
    if (jobs[j].rows != jobs[0].rows) return {"cuda::rotary: jobs of one call have the same rows"};
    sixteens = sixteens && in_sixteens(jobs[j]);
  }
  if (jobs[0].rows == 0) return {};
  RotaryArguments a{};
  int lanes = 0;
  for (int j = 0; j < kJobs; ++j) {
    if (j < count) {
      a.job[j] = jobs[j];
      a.shift[j] = 5;
      while (sixteens && a.shift[j] > 0 && jobs[j].dim / 16 <= 1 << (a.shift[j] - 1)) --a.shift[j];
      lanes += ((jobs[j].heads << a.shift[j]) + 31) / 32 * 32;
    }
    a.end[j] = lanes;
  }
  const dim3 grid(static_cast<unsigned>(jobs[0].rows), (lanes + kThreads - 1) / kThreads);
  const auto on = static_cast<cudaStream_t>(stream);
  (sixteens ? rotary_kernel : rotary_any_kernel)<<<grid, kThreads, 0, on>>>(a);
  return status_of(cudaGetLastError(), "launching rotary positions");
}

}  // namespace oscar::cuda
