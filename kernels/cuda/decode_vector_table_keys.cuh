// Keys of 8-channel words: a table of q.word for 4 heads, 16-bit fixed point, made anew for every sequence; a
// logit is a sum of N table entries, which the matrix unit does with a 0/1 selector as its other operand.
//
// An entry is 8 bytes: {high, low} byte of head 0, 1, 2, 3. As an operand of 16 rows it is heads 0, 1 in row
// g and heads 2, 3 in row g + 8, for token X in the first half of k and token Y in the second; columns 0-3 of
// the selector add up byte 0-3 of X, columns 4-7 those of Y. Any lane may take any group at any step, so rows
// take groups 4 j + t in an order that depends on g (the page is written so) and half a warp meets 16 pairs
// of banks.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"

namespace oscar::cuda {

template <int kDim, bool kNorm>
struct TableKeys {
  static constexpr int kGroups = kDim / 8, kPerLane = kGroups / 4, kLoads = kGroups / 8;
  static constexpr int kReplicas =
      4 / kPerLane;  // D = 64 has half the groups, and needs a second copy for its banks
  static constexpr uint32_t kTableBytes = kTable;  // of a row the first 128 bytes
  static constexpr bool kStages = false;

  uint4 codes[kLoads], scales;
  unsigned lane_bytes, selector_x, selector_y;
  float unit;

  OSCAR_DEVICE explicit TableKeys(int lane) {
    const int g = lane / 4, t = lane % 4;
    lane_bytes = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int j = i ^ g % kPerLane, replica = g / kPerLane % kReplicas;
      lane_bytes |= static_cast<unsigned>(replica * 64 + (4 * j + t) * 8) << (8 * i);
    }
    selector_x = g < 4 ? 1u << (8 * g) : 0u;
    selector_y = g >= 4 ? 1u << (8 * (g - 4)) : 0u;
    keep(lane_bytes);
    keep(selector_x);
    keep(selector_y);
  }
  static constexpr bool kFlips = true;  // lanes with t >= 2 have the tokens of a pair of slots exchanged

  OSCAR_DEVICE void load(const uint8_t* block, int i) {
    codes[i] = load_stream4(block + 512 * i);
  }
  OSCAR_DEVICE void load_scales(const uint8_t* block, int lane, bool norm) {
    if constexpr (kNorm) {
      scales = norm ? load_stream4(block + 64 * kGroups - 16 * lane + 16 * (lane / 4))
                    : make_uint4(0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00);
    }
  }

  OSCAR_DEVICE static void build(uint32_t) {}

  // The table. Products are exact integers of a 16-bit query, kept in registers until their largest is known:
  // a looser bound would cost half a bit. `scratch`: 16 bytes a warp.
  OSCAR_DEVICE void begin(const VectorArguments& a, const QueryRows& rows, int head, uint32_t scratch) {
    constexpr int kCodes = kBlockThreads / kGroups, kRounds = 256 / kCodes;  // codes a round of the block
    const int thread = thread_again(), warp = thread / 32, lane = thread % 32, group = thread % kGroups,
              first = thread / kGroups;
    const int8_t* words = a.in.k_book.words + (int64_t{head} * 256 + first) * kDim + group * 8;
    uint2 word[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i)
      word[i] = __ldg(reinterpret_cast<const uint2*>(words + i * kCodes * kDim));
    const float group_scale = __ldg(a.in.k_book.scales + head * kGroups + group);
    // A lane makes the limbs of some heads, and gets the others' from the lanes of the same group.
    constexpr int kOwn = kGroups / 8;
    float4 x[kOwn][2];
    query_eights<kDim, kOwn>(rows, thread % 32 / kGroups * kOwn, 8 * group, x);
    float own_fixed[kOwn];
    unsigned own_limbs[kOwn][4];
#pragma unroll
    for (int h = 0; h < kOwn; ++h) {
      x[h][0] = times(x[h][0], group_scale);
      x[h][1] = times(x[h][1], group_scale);
      float most = fmaxf(1e-20f, fmaxf(largest(x[h][0]), largest(x[h][1])));
#pragma unroll
      for (int o = kGroups / 2; o; o >>= 1) most = fmaxf(most, __shfl_xor_sync(kWarp, most, o));
      own_fixed[h] = 32000.f / most;
#pragma unroll
      for (int i = 0; i < 4; ++i) own_limbs[h][i] = pack_limbs(x[h][i / 2], own_fixed[h], i % 2);
    }
    int products[kRounds][4];
    float fixed[4];
    unsigned top[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const int from = h / kOwn * kGroups + group;
      fixed[h] = __shfl_sync(kWarp, own_fixed[h % kOwn], from);
      int limb[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        limb[i] = static_cast<int>(__shfl_sync(kWarp, own_limbs[h % kOwn][i], from));
      int most = 0;
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int a0 = static_cast<int>(word[i].x), a1 = static_cast<int>(word[i].y);
        products[i][h] =
            __dp4a(a0, limb[0], __dp4a(a1, limb[2], 0)) * 256 + __dp4a(a0, limb[1], __dp4a(a1, limb[3], 0));
        most = max(most, abs(products[i][h]));
      }
      top[h] = __reduce_max_sync(kWarp, static_cast<unsigned>(most));
    }
    if (lane == 0) store_shared4(scratch + warp * 16, top[0], top[1], top[2], top[3]);
    __syncthreads();
    const uint4 of_warp = load_shared4(scratch + lane % kBlockWarps * 16);
    float scale[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const unsigned largest_product = max(1u, __reduce_max_sync(kWarp, component(of_warp, h)));
      scale[h] = 32700.f / static_cast<float>(largest_product);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      unsigned entry[4];  // the sum's low 16 bits
#pragma unroll
      for (int h = 0; h < 4; ++h)
        entry[h] = __float_as_uint(fmaf(static_cast<float>(products[i][h]), scale[h], 8388608.f + 32768.f));
      const uint32_t at = kTables + (first + i * kCodes) * kRow + group * 8;
#pragma unroll
      for (int r = 0; r < kReplicas; ++r) {
        store_shared2(at + 64 * r, permute_bytes(entry[0], entry[1], 0x4501),
                      permute_bytes(entry[2], entry[3], 0x4501));
      }
    }
    const float even = lane & 2 ? fixed[2] * scale[2] : fixed[0] * scale[0];
    const float odd = lane & 2 ? fixed[3] * scale[3] : fixed[1] * scale[1];
    unit = rows.scale / (lane & 1 ? odd : even);
    __syncthreads();
  }
  // Entries are 32768 too large. Row scales multiply the sum, so then it is taken off at once; else at the
  // very end.
  OSCAR_DEVICE float offset() const {
    return kNorm ? 0.f : -32768.f * kGroups;
  }

  // x[r]: token 8 g + (r ^ t / 2) of head t, in `unit`s.
  OSCAR_DEVICE void logits(float (&x)[8], const uint8_t* next, bool more, bool norm, int lane) {
    int sums[4][4] = {};
    unsigned words[2][4][4];
#pragma unroll
    for (int step = 0; step <= kPerLane; ++step) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        if (step < kPerLane) look_up(words[step & 1][tile], tile, step);
      }
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        if (step > 0) {
          const unsigned(&w)[4] = words[(step - 1) & 1][tile];
          product_uu(sums[tile], w[0], w[1], w[2], w[3], selector_x, selector_y);
        }
      }
    }
    const bool first = !(lane & 2);  // columns 2 t, 2 t + 1 are of token X
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      constexpr int kOffset = kNorm ? kGroups * 32768 : 0;
      float a = static_cast<float>(sums[tile][0] * 256 + sums[tile][1] - kOffset);  // head t & 1
      float b = static_cast<float>(sums[tile][2] * 256 + sums[tile][3] - kOffset);  // head 2 + (t & 1)
      if constexpr (kNorm) {
        const float2 f = halves(component(scales, tile));
        a *= first ? f.x : f.y;
        b *= first ? f.x : f.y;
      }
      x[2 * tile] = first ? a : b;
      x[2 * tile + 1] = __shfl_xor_sync(kWarp, first ? b : a, 2);
      const int tiles = 4 / kLoads;
      if (more && tile % tiles == tiles - 1) load(next, tile / tiles);
    }
    if constexpr (kNorm) {
      if (more) load_scales(next, lane, norm);
    }
  }

 private:
  OSCAR_DEVICE void look_up(unsigned (&words)[4], int tile, int step) const {
#pragma unroll
    for (int token = 0; token < 2; ++token) {
      const int slot = 2 * tile + token, at = kPerLane * (slot % (16 / kPerLane)) + step;
      const unsigned four = component(codes[slot / (16 / kPerLane)], at / 4);
      // As in table_address(), but all four lane bytes are in use: they are below 128, so their sign is the
      // zero.
      const unsigned byte = 4u + static_cast<unsigned>(step), sign = 8u | byte;
      const uint32_t address =
          permute_bytes(four, lane_bytes, sign << 12 | sign << 8 | static_cast<unsigned>(at % 4) << 4 | byte);
      const uint2 entry = load_shared2(address + kTables);
      words[2 * token] = entry.x;
      words[2 * token + 1] = entry.y;
    }
  }
};

}  // namespace oscar::cuda
