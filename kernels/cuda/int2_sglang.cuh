// Rows of the serving engine as attend_tile() reads them: 64 tokens of a run of KV heads in shared memory, gathered row by row.
//
//   keys      row of token s (D / 4 bytes a head, `run` heads side by side) is row 8 (s % 8) + s / 8
//   values    row of token s is row 4 (s % 16) + s / 16
//   metadata  scale, zero of every head and group, in the order of the rows of keys
//
// and within a row heads (metadata: pieces of 16 bytes) change places by Spread, so that what the lanes of a warp read
// together lies in different banks. kRun: the run where it is known, 0: given.
#pragma once
#include "kernels/cuda/int2_tile.cuh"

namespace oscar::cuda {

// Units of `kUnit` bytes, `count` (a power of two) to a row: where unit u of the i-th of neighbouring rows is.
template <int kUnit>
OSCAR_DEVICE int spread(int u, int i, int count) {
  constexpr int kAcross = 128 / kUnit;  // units in all banks
  if (count >= kAcross) return u ^ (i & (kAcross - 1));
  return u ^ (i / (kAcross / count) & (count - 1));
}

template <class Shape, class Meta, int kRun>  // Meta: float, or __nv_bfloat16
struct SglangTile {
  static constexpr int D = Shape::D, G = Shape::G, kRow = D / 4, kPair = 2 * sizeof(Meta);
  static constexpr int kWords = D / 64;                           // of a key row that a lane reads
  static constexpr int kColumns = D / 32;                         // bytes of a value row that a lane reads
  static constexpr bool kValueZeros = true;
  static constexpr int kHeadBytes = 64 * 2 * (kRow + G * kPair);  // of one head of 64 tokens, all four arrays

  uint32_t keys_at, values_at, key_meta, base = 0;  // of this lane and head, from `base`
  int run_, lane, meta_xor;
  OSCAR_DEVICE int run() const { return kRun ? kRun : run_; }

  // Offsets in a part of 64 tokens: keys, values, metadata of keys, of values.
  static OSCAR_DEVICE int values_offset(int run) { return 64 * kRow * run; }
  static OSCAR_DEVICE int meta_offset(int run) { return 128 * kRow * run; }
  static OSCAR_DEVICE int meta_bytes(int run) { return 64 * G * kPair * run; }
  static OSCAR_DEVICE int key_row(int s) { return 8 * (s & 7) + (s >> 3); }
  static OSCAR_DEVICE int value_row(int s) { return 4 * (s & 15) + (s >> 4); }
  static OSCAR_DEVICE int key_at(int s, int head, int run) {
    return (key_row(s) * run + spread<kRow>(head, s >> 3, run)) * kRow;
  }
  static OSCAR_DEVICE int value_at(int s, int head, int run) {
    return (value_row(s) * run + spread<kRow>(head, s >> 4, run)) * kRow;
  }
  // piece: of 16 bytes of a token's metadata; rows shorter than that stay as they are.
  static OSCAR_DEVICE int meta_at(int s, int piece, int run) {
    const int row = G * kPair * run;
    return key_row(s) * row + (row >= 16 ? 16 * spread<16>(piece, s >> 3, row / 16) : 0);
  }

  OSCAR_DEVICE SglangTile(int run, int head, int lane) : run_(run), lane(lane) {
    const int g = lane >> 2, t = lane & 3, first = 16 * t;
    keys_at = key_at(8 * g, head, this->run()) + 4 * kWords * t;
    values_at = values_offset(this->run()) + value_at(first, head, this->run()) + kColumns * g;
    const int row = G * kPair * this->run();
    key_meta = meta_offset(this->run()) + g * row + head * G * kPair;
    meta_xor = row >= 16 ? 16 * spread<16>(0, g, row / 16) : 0;
  }
  OSCAR_DEVICE SglangTile at(uint32_t shared) const {
    SglangTile moved = *this;
    moved.base = shared;
    return moved;
  }

  // Block 2 w + p: word w of the lane's bytes, fields 2 p and 2 p + 1.
  template <int>
  static OSCAR_DEVICE int channel(int block, int half, int t, int j) {
    return 4 * (kWords * t + block / 2) + j + (2 * (block % 2) + half) * (D / 4);
  }
  template <class>
  static constexpr OSCAR_DEVICE int group(int block, int half) {
    return (2 * (block % 2) + half) * G / 4;
  }
  static constexpr OSCAR_DEVICE int value_channel(int i, int r, int g) {
    return kColumns * g + i / 2 + (2 * (i & 1) + r) * (D / 4);
  }
  static constexpr OSCAR_DEVICE int value_group(int i, int r) { return (2 * (i & 1) + r) * G / 4; }

  template <class S>
  OSCAR_DEVICE void keys(int h, const Int2Query<S>& query, int (&s)[S::NT][4][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned rows[2][kWords];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t at = base + keys_at + (2 * i + r) * 8 * kRow * run();
        if constexpr (kWords == 1) rows[r][0] = load_shared(at);
        if constexpr (kWords == 2) {
          const uint2 v = load_shared2(at);
          rows[r][0] = v.x;
          rows[r][1] = v.y;
        }
        if constexpr (kWords == 4) {
          const uint4 v = load_shared4(at);
          rows[r][0] = v.x;
          rows[r][1] = v.y;
          rows[r][2] = v.z;
          rows[r][3] = v.w;
        }
      }
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const int p = block % 2;
        const unsigned a = rows[0][block / 2] >> (4 * p), b = rows[1][block / 2] >> (4 * p);
#pragma unroll
        for (int n = 0; n < S::NT; ++n) {
          const auto& q = query.limbs[n][block];
          if (G <= 2) {
            if (group<S>(block, 0) == h) {
              product_us(s[n][i], a & kField0, b & kField0, a & kField1, b & kField1, q[0], q[1]);
            }
          } else {
            if (group<S>(block, 0) == h) product_us16(s[n][i], a & kField0, b & kField0, q[0]);
            if (group<S>(block, 1) == h) product_us16(s[n][i], a & kField1, b & kField1, q[1]);
          }
        }
      }
    }
  }
  template <class S, class F>
  OSCAR_DEVICE void values(int h, F&& tile) const {
    unsigned codes[kColumns][4];  // a byte column each; byte j of word q is token 16 t + 4 q + j
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      unsigned row[4][(kColumns + 3) / 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t at = base + values_at + (4 * q + j) * 4 * kRow * run();
        if constexpr (kColumns == 2) {
          unsigned short v;
          asm volatile("ld.shared.u16 %0,[%1];" : "=h"(v) : "r"(at));
          row[j][0] = v;
        }
        if constexpr (kColumns == 4) row[j][0] = load_shared(at);
        if constexpr (kColumns == 8) {
          const uint2 v = load_shared2(at);
          row[j][0] = v.x;
          row[j][1] = v.y;
        }
      }
#pragma unroll
      for (int w = 0; w < (kColumns + 3) / 4; ++w) {
        const unsigned ab = __byte_perm(row[0][w], row[1][w], 0x5140),
                       cd = __byte_perm(row[2][w], row[3][w], 0x5140);
        codes[4 * w][q] = __byte_perm(ab, cd, 0x5410);
        codes[4 * w + 1][q] = __byte_perm(ab, cd, 0x7632);
        if constexpr (kColumns > 2) {
          const unsigned ab2 = __byte_perm(row[0][w], row[1][w], 0x7362),
                         cd2 = __byte_perm(row[2][w], row[3][w], 0x7362);
          codes[4 * w + 2][q] = __byte_perm(ab2, cd2, 0x5410);
          codes[4 * w + 3][q] = __byte_perm(ab2, cd2, 0x7632);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
      const unsigned first = value_group(i, 0) == h ? ((i & 1) ? kField2 : kField0) : 0u;
      const unsigned second = value_group(i, 1) == h ? ((i & 1) ? kField3 : kField1) : 0u;
      if (first | second) {
        const auto& c = codes[i / 2];
        tile(i, first, second, make_uint4(c[0], c[1], c[2], c[3]));
      }
    }
  }
  OSCAR_DEVICE void key_metadata(int h, float (&scale)[8], float (&low)[8]) const {
    metadata(0, h, scale, low);
#pragma unroll
    for (int r = 0; r < 8; ++r) low[r] *= scale[r];
  }
  OSCAR_DEVICE void value_metadata(int h, float (&scale)[8], float (&zero)[8]) const {
    metadata(meta_bytes(run()), h, scale, zero);
  }

 private:
  // zero: what is added to a code, which is -zero of the row.
  OSCAR_DEVICE void metadata(int offset, int h, float (&scale)[8], float (&zero)[8]) const {
    const int row = G * kPair * run(),
              within = key_meta + h * kPair;  // rows are a multiple of 16, or less than 16
    const uint32_t first = base + offset + (within ^ meta_xor);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const uint32_t at = first + r * 8 * row;
      if constexpr (sizeof(Meta) == 4) {
        const uint2 v = load_shared2(at);
        scale[r] = __uint_as_float(v.x);
        zero[r] = -__uint_as_float(v.y);
      } else {
        const unsigned v = load_shared(at);
        scale[r] = __uint_as_float(v << 16);
        zero[r] = -__uint_as_float(v & 0xffff0000u);
      }
    }
  }
};

}  // namespace oscar::cuda
