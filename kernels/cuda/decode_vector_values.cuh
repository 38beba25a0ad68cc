// Values of words: four tokens' words are transposed so that a register is four tokens of one channel, an
// operand of 16 channels by 32 tokens; the other operand is the weights, 4 heads x {high, low} byte.
//
// Tables. PairedValues: 2 replicas of every word. Lanes with t < 2 take group 8 j + g while those with t >= 2
// take 8 (j ^ 1) + g, which with the replicas t & 1 makes 32 banks; an operand then mixes two groups, and is
// multiplied with the weights of either half of the lanes apart. ReplicatedValues: 4 replicas, one product,
// twice the memory.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"

namespace oscar::cuda {

// What both have: kSize channels a word; out[i][r] with kSize j + c = 2 i + r is channel c of group 8 j + g,
// of head t.
template <int kDim, int kSize, bool kNorm>
struct WordValues {
  static constexpr int kGroups = kDim / kSize, kLoads = kGroups / 8;
  static constexpr bool kWeighted = kNorm, kMinima = false;
  static constexpr bool kStages = true;  // its words, on their way into the table

  uint4 codes[kLoads], scales;

  OSCAR_DEVICE void load_scales(const uint8_t* block, int lane, bool norm) {
    if constexpr (kNorm) {
      scales = norm ? load_stream4(block + 64 * kGroups - 16 * lane + 16 * (lane / 4))
                    : make_uint4(0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00);
    }
  }
  // Of tokens 8 g + r, or 8 g + (r ^ 1) for lanes that are flipped.
  OSCAR_DEVICE void weights(float (&scale)[8], float (&)[8], bool flipped) const {
    if constexpr (kNorm) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = halves(component(scales, i));
        scale[2 * i] = flipped ? f.y : f.x;
        scale[2 * i + 1] = flipped ? f.x : f.y;
      }
    }
  }
  OSCAR_DEVICE static int channel(int i, int r, int g) {
    const int output = 2 * i + r;
    return (output / kSize * 8 + g) * kSize + output % kSize;
  }
  // From sums of words to numbers.
  OSCAR_DEVICE static void finish(float (&o)[kDim / 16][2], uint32_t scales, float, int lane) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const float scale = __uint_as_float(load_shared(scales + (8 * j + lane / 4) * 4));
#pragma unroll
      for (int c = 0; c < kSize; ++c) o[(kSize * j + c) / 2][c % 2] *= scale;
    }
  }
  // To row[channel], for a row of each t that begins at bank 0. A lane begins within its words where no other
  // lane of the warp does: in the order of the channels four or eight lanes would meet in a bank.
  OSCAR_DEVICE static void store(const float (&o)[kDim / 16][2], float* row, int lane) {
    const int g = lane / 4, t = lane % 4, begin = kSize == 4 ? t : t + 4 * (g / 4);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      float v[kSize];
#pragma unroll
      for (int c = 0; c < kSize; ++c) v[c] = o[(kSize * j + c) / 2][c % 2];
#pragma unroll
      for (int turn = 1; turn < kSize; turn *= 2) {
        float turned[kSize];
#pragma unroll
        for (int c = 0; c < kSize; ++c) turned[c] = begin & turn ? v[(c + turn) % kSize] : v[c];
#pragma unroll
        for (int c = 0; c < kSize; ++c) v[c] = turned[c];
      }
#pragma unroll
      for (int c = 0; c < kSize; ++c) row[(8 * j + g) * kSize + (c + begin) % kSize] = v[c];
    }
  }
};

template <int kDim, int kSize, bool kNorm, uint32_t kBase>
struct PairedValues : WordValues<kDim, kSize, kNorm> {
  using Base = WordValues<kDim, kSize, kNorm>;
  using Base::codes;
  using Base::kGroups;
  using Base::kLoads;
  static constexpr uint32_t kTableBytes = kTable;
  static_assert(kLoads % 2 == 0);
  unsigned lane_bytes;

  OSCAR_DEVICE explicit PairedValues(int lane) {
    const int g = lane / 4, t = lane % 4, pair = t >> 1;
    lane_bytes = (g * 4 + pair * 2 + (t & 1)) * 4;
    lane_bytes |= ((g * 4 + (pair ^ 1) * 2 + (t & 1)) * 4) << 8;
    keep(lane_bytes);
  }
  // Pages of 8-channel words have their groups in order: there the lane reads the other load.
  OSCAR_DEVICE void load(const uint8_t* block, int i, int lane) {
    codes[i] = load_stream4(block + 512 * (kSize == 8 ? i ^ (lane >> 1 & 1) : i));
  }

  OSCAR_DEVICE static void build(uint32_t staged) {
    constexpr int kWords = kDim / 4,
                  kCodes = kBlockThreads / kWords;  // words of 4 bytes of a code; codes of a round
    const int thread = thread_again(), first = thread / kWords, y = thread % kWords, group = y / (kSize / 4);
    const int j = group / 8, part = kSize == 4 ? j / 2 : y % 2;  // of a row: which 128 bytes
    const uint32_t at = kBase + first * kRow + part * 128 + group % 8 * 16 + j % 2 * 8;
#pragma unroll 8
    for (int i = 0; i < 256 / kCodes; ++i) {
      const unsigned word = load_shared(staged + (thread + i * kBlockThreads) * 4);
      store_shared2(at + i * kCodes * kRow, word, word);
    }
  }

  OSCAR_DEVICE void accumulate(float (&out)[kDim / 16][2], const unsigned (&weights)[4], float scale,
                               const uint8_t* next, bool more, int lane) {
    const bool lower = !(lane & 2);
    unsigned masked[2][4];  // the weights of lanes t < 2, of lanes t >= 2
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      masked[0][i] = lower ? weights[i] : 0u;
      masked[1][i] = lower ? 0u : weights[i];
    }
#pragma unroll
    for (int pair = 0; pair < kLoads / 2; ++pair) {
#pragma unroll
      for (int part = 0; part < kSize / 4;
           ++part) {             // 4 channels of a word at a time: what the registers hold
        int sums[2][2][4] = {};  // of groups j = 2 pair, 2 pair + 1
        // The second 128 bytes by the lane's byte, not by the immediate: ptxas would keep 32 addresses for
        // its sake.
        const unsigned bytes = lane_bytes | part * 0x8080u;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int y = 0; y < 2; ++y) {
            unsigned channels[2][4];
#pragma unroll
            for (int quad = 0; quad < 2; ++quad) {
              const unsigned four = component(codes[2 * pair + y], 2 * half + quad);
              unsigned words[4];
#pragma unroll
              for (int token = 0; token < 4; ++token) {
                words[token] = load_shared(table_address(four, token, bytes, y) +
                                           (kBase + (kSize == 4 ? pair * 128 : 0)));
              }
              transpose_bytes(words, channels[quad]);
            }
            if (part == kSize / 4 - 1 && half == 1 && more) load(next, 2 * pair + y, lane);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
#pragma unroll
              for (int z = 0; z < 2; ++z) {
                product_su(sums[z][c], channels[0][2 * c], channels[0][2 * c + 1], channels[1][2 * c],
                           channels[1][2 * c + 1], masked[y ^ z][2 * half], masked[y ^ z][2 * half + 1]);
              }
            }
          }
        }
#pragma unroll
        for (int z = 0; z < 2; ++z) {
#pragma unroll
          for (int c = 0; c < 2; ++c) add(out[kSize / 2 * (2 * pair + z) + 2 * part + c], sums[z][c], scale);
        }
      }
    }
  }
};

// For words of 8 channels.
template <int kDim, bool kNorm, uint32_t kBase>
struct ReplicatedValues : WordValues<kDim, 8, kNorm> {
  using Base = WordValues<kDim, 8, kNorm>;
  using Base::codes;
  using Base::kGroups;
  using Base::kLoads;
  static constexpr uint32_t kTableBytes = kLoads * kTable;
  unsigned lane_bytes;

  OSCAR_DEVICE explicit ReplicatedValues(int lane) : lane_bytes(lane * 8) { keep(lane_bytes); }
  OSCAR_DEVICE void load(const uint8_t* block, int i, int) { codes[i] = load_stream4(block + 512 * i); }

  OSCAR_DEVICE static void build(uint32_t staged) {
    constexpr int kCodes = kBlockThreads / kGroups;
    const int thread = thread_again(), first = thread / kGroups, group = thread % kGroups;
    const uint32_t at = kBase + group / 8 * kTable + first * kRow + group % 8 * 32;
#pragma unroll
    for (int i = 0; i < 256 / kCodes; ++i) {
      const uint2 word = load_shared2(staged + (thread + i * kBlockThreads) * 8);
      store_shared4(at + i * kCodes * kRow, word.x, word.y, word.x, word.y);
      store_shared4(at + i * kCodes * kRow + 16, word.x, word.y, word.x, word.y);
    }
  }

  OSCAR_DEVICE void accumulate(float (&out)[kDim / 16][2], const unsigned (&weights)[4], float scale,
                               const uint8_t* next, bool more, int lane) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      unsigned channels[4][8];
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        unsigned words[2][4];
#pragma unroll
        for (int token = 0; token < 4; ++token) {
          const uint32_t address = table_address(component(codes[j], quad), token, lane_bytes, 0);
          const uint2 word = load_shared2(address + (kBase + j * kTable));
          words[0][token] = word.x;
          words[1][token] = word.y;
        }
        transpose_bytes(words[0], channels[quad]);
        transpose_bytes(words[1], channels[quad] + 4);
      }
      if (more) load(next, j, lane);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        int sums[4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          product_su(sums, channels[2 * half][2 * c], channels[2 * half][2 * c + 1],
                     channels[2 * half + 1][2 * c], channels[2 * half + 1][2 * c + 1], weights[2 * half],
                     weights[2 * half + 1]);
        }
        add(out[4 * j + c], sums, scale);
      }
    }
  }
};

}  // namespace oscar::cuda
