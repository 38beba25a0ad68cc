#include "kernels/cuda/decode_vector.cuh"

#include "kernels/cuda/status.cuh"
#include "kernels/vector_pages.h"

namespace oscar::cuda {

using LaunchKeys = cudaError_t(const DecodeLaunch&, const VectorArguments&, int memory_begin);
LaunchKeys launch_vector_64_int2, launch_vector_64_4x8, launch_vector_64_8x8;
LaunchKeys launch_vector_128_int2, launch_vector_128_4x8, launch_vector_128_8x8;

namespace {

// Tables of 64 KB: words of 4 channels as keys one for every 64 channels, all others one; 8-channel values
// two at D = 128 unless keys have left room for one only.
int table_bytes(const CacheFormat& f) {
  using enum CodeKind;
  const int wide = f.dim / 64, keys = f.k.kind == int2 ? 0 : f.k.kind == vector4x8 ? wide : 1;
  const int values = f.v.kind == int2 ? 0 : f.v.kind == vector8x8 && keys < 2 ? wide : 1;
  return 65536 * (keys + values);
}

}  // namespace

Status check_vector(const CacheFormat& f) {
  if ((f.k.kind == CodeKind::int2 && f.k.groups != 1) || (f.v.kind == CodeKind::int2 && f.v.groups != 1)) {
    return {"cuda::decode: int2 rows beside vector codes have one group"};
  }
  int device = 0, room = 0;
  if (Status s = status_of(cudaGetDevice(&device), "looking for the device"); !s.ok()) return s;
  if (Status s = status_of(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                           "reading the device");
      !s.ok()) {
    return s;
  }
  const int needed = table_bytes(f) + vector_warp_bytes(f.dim);
  if (needed <= room) return {};
  static thread_local char buffer[256];
  std::snprintf(buffer, sizeof buffer,
                "cuda::decode: the tables of these vector codes need %d KB of shared memory, this device has "
                "%d KB a block: use the CPU, or int2 on one side",
                (needed + 1023) / 1024, room / 1024);
  return {buffer};
}

cudaError_t launch_vector(const DecodeLaunch& d) {
  const CacheFormat& f = d.format;
  const int64_t key_bytes = side_bytes(f, f.k), block_bytes = key_bytes + side_bytes(f, f.v);
  const VectorArguments arguments{d.inputs,
                                  d.outputs,
                                  d.view,
                                  partials_in(d.workspace, f, 1, d.plan.partials),
                                  f.kv_heads,
                                  f.group,
                                  static_cast<int>(page_bytes(f)),
                                  static_cast<int>(key_bytes),
                                  static_cast<int>(block_bytes),
                                  f.k.norm,
                                  f.v.norm};
  int device = 0, major = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (const cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      e != cudaSuccess)
    return e;
  // Dynamic shared memory begins at 1024 from sm_90 on; before, no promise is known.
  const int memory_begin = major >= 9 ? 1024 : 0;
  using enum CodeKind;
  LaunchKeys* const launch = f.dim == 64 ? (f.k.kind == int2        ? launch_vector_64_int2
                                            : f.k.kind == vector4x8 ? launch_vector_64_4x8
                                                                    : launch_vector_64_8x8)
                                         : (f.k.kind == int2        ? launch_vector_128_int2
                                            : f.k.kind == vector4x8 ? launch_vector_128_4x8
                                                                    : launch_vector_128_8x8);
  return launch(d, arguments, memory_begin);
}

}  // namespace oscar::cuda
