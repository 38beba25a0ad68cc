// Keys of 4-channel words: the word is an operand of the matrix unit as it comes out of the table, 16 tokens
// by 32 channels; the other operand is the query times the groups' scales, 4 heads x {high, low} limb.
//
// Table: 4 replicas of every word. Rows g of a warp that are even take groups 4 j + t with j & 2 = 0 while
// the odd ones take j & 2 = 2 and the other way round (the page is written so), which with the replicas g / 2
// makes 32 banks. An odd row has therefore multiplied the wrong half of the query: each operand is multiplied
// with both halves, and the row keeps its own.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"

namespace oscar::cuda {

template <int kDim, bool kNorm>
struct WordKeys {
  static constexpr int kGroups = kDim / 4, kPerLane = kGroups / 4, kLoads = kGroups / 8, kSteps = kDim / 32;
  static constexpr uint32_t kTableBytes = kDim / 64 * kTable;
  static constexpr bool kStages = true;  // its words, on their way into the table

  uint4 codes[kLoads], scales;
  unsigned query[kSteps][2], lane_bytes;
  float unit;  // of the products, in powers of two

  OSCAR_DEVICE explicit WordKeys(int lane) {
    const int g = lane / 4, t = lane % 4, parity = g & 1;
    lane_bytes = (parity * 4 + t) * 16 + g / 2 * 4;
    lane_bytes |= (((parity ^ 1) * 4 + t) * 16 + g / 2 * 4) << 8;
    keep(lane_bytes);
  }
  static constexpr bool kFlips = false;

  OSCAR_DEVICE void load(const uint8_t* block, int i) { codes[i] = load_stream4(block + 512 * i); }
  OSCAR_DEVICE void load_scales(const uint8_t* block, int lane, bool norm) {
    if constexpr (kNorm) {
      scales = norm ? load_stream4(block + 64 * kGroups - 16 * lane + 16 * (lane / 4))
                    : make_uint4(0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00);
    }
  }

  // Staged words into the table: 8 neighbouring lanes write the 4 replicas of 8 groups, half a row.
  OSCAR_DEVICE static void build(uint32_t staged) {
    const int thread = thread_again(), first = thread / kGroups, y = thread % kGroups, to = y / 4, t = y % 4;
    const int j = (to & 1) << 1 | (to >> 1 & 1) | (to & 4);
    const uint32_t from = staged + (first * kGroups + 4 * j + t) * 4;
    const uint32_t at =
        kTables + first * kRow + (j & 1) * 128 + (j >> 2) * kTable + ((j >> 1 & 1) * 4 + t) * 16;
    constexpr int kCodes = kBlockThreads / kGroups;  // of a round of the block
#pragma unroll 8
    for (int i = 0; i < 256 / kCodes; ++i) {
      const unsigned word = load_shared(from + i * kBlockThreads * 4);
      store_shared4(at + i * kCodes * kRow, word, word, word, word);
    }
  }

  // No barrier: each warp makes its own operands.
  OSCAR_DEVICE void begin(const VectorArguments& a, const QueryRows& rows, int head, uint32_t) {
    const int lane = thread_again() % 32, g = lane / 4, t = lane % 4;
    const float* group_scales = a.in.k_book.scales + head * kGroups;
    const auto group = [&](int i) { return 4 * i + t; };  // of step i / 2, half i % 2
    float4 x[2 * kSteps];
    query_fours<2 * kSteps>(
        rows, g / 2, [&](int row, int i) { return row * kDim + 4 * group(i); }, x);
    float top = 1e-20f;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      x[i] = times(x[i], __ldg(group_scales + group(i)));
      top = fmaxf(top, largest(x[i]));
    }
    top = fmaxf(top, __shfl_xor_sync(kWarp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kWarp, top, 2));
    const float fixed = 32000.f / top;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) query[step][half] = pack_limbs(x[2 * step + half], fixed, g & 1);
    }
    unit = rows.scale / __shfl_sync(kWarp, fixed, 8 * t);
  }
  OSCAR_DEVICE float offset() const {
    return 0;
  }

  // x[r]: token 8 g + r of head t, in `unit`s. A load of the next page is issued as soon as its register is
  // free.
  OSCAR_DEVICE void logits(float (&x)[8], const uint8_t* next, bool more, bool norm, int lane) {
    const bool odd = lane & 4;
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {  // two tiles of 16 tokens interleaved: what the registers hold
      int even_order[2][4] = {}, odd_order[2][4] = {};
      unsigned words[2][2][4];  // a step's lookups are under way while the step before multiplies
#pragma unroll
      for (int step = 0; step <= kSteps; ++step) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          if (step < kSteps) look_up(words[step & 1][tile], pair + tile, step);
        }
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          if (step > 0) {
            const unsigned(&w)[4] = words[(step - 1) & 1][tile];
            product_ss(even_order[tile], w[0], w[1], w[2], w[3], query[step - 1][0], query[step - 1][1]);
            product_ss(odd_order[tile], w[0], w[1], w[2], w[3], query[(step - 1) ^ 1][0],
                       query[(step - 1) ^ 1][1]);
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) even_order[tile][i] = odd ? odd_order[tile][i] : even_order[tile][i];
        x[2 * (pair + tile)] = limbs(even_order[tile][0], even_order[tile][1]);
        x[2 * (pair + tile) + 1] = limbs(even_order[tile][2], even_order[tile][3]);
        const int tiles = 4 / kLoads;  // that share a load
        if (more && (pair + tile) % tiles == tiles - 1) load(next, (pair + tile) / tiles);
      }
    }
    if constexpr (kNorm) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = halves(component(scales, i));
        x[2 * i] *= f.x;
        x[2 * i + 1] *= f.y;
      }
      if (more) load_scales(next, lane, norm);
    }
  }

 private:
  OSCAR_DEVICE void look_up(unsigned (&words)[4], int tile, int step) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int slot = 2 * tile + row, i = 2 * step + half, at = kPerLane * (slot % (16 / kPerLane)) + i;
        const unsigned four = component(codes[slot / (16 / kPerLane)], at / 4);
        const uint32_t address = table_address(four, at % 4, lane_bytes, i >> 1 & 1);
        words[2 * half + row] = load_shared(address + (kTables + (i & 1) * 128 + (i >> 2) * kTable));
      }
    }
  }
};

}  // namespace oscar::cuda
