// From the codes of sixteen rows, in shared memory, to the bits of their tokens in chunks of native pages.
//
// Lane = 2 r + k has of row r the places 8 q + 4 k .. + 3 of every octet q of a chunk, one a byte. Shifted
// and put together they are bytes of the page. Values: all octets make the four bytes g = 4 k .. + 3 of
// kernels/plane_pages.h. Keys: the even ones make the nibbles of word t = k, the odd ones those of t = 2 + k.
#pragma once
#include "kernels/cuda/write_planes.cuh"

namespace oscar::cuda {

// Codes of sixteen rows, a byte each, and their norms. Octet o of row r is at o ^ order(r), so that neither
// the four lanes of a row that write nor the sixteen rows that are read meet in a bank.
template <int D>
struct CodeStage {
  static constexpr int kPitch = (D + 127) / 128 * 128, kBytes = 16 * kPitch + 32;
  uint8_t* start;

  static OSCAR_DEVICE int order(int row) { return (row & 3) << 2 | row >> 2; }
  OSCAR_DEVICE void put(int row, int octet, const UnitCodes& codes) const {
    *reinterpret_cast<uint2*>(start + row * kPitch + 8 * (octet ^ order(row))) =
        make_uint2(codes.word[0], codes.word[1]);
  }
  OSCAR_DEVICE unsigned get(int row, int octet, int k) const {
    return *reinterpret_cast<const unsigned*>(start + row * kPitch + 8 * (octet ^ order(row)) + 4 * k);
  }
  OSCAR_DEVICE uint16_t& norm(int row) const { return reinterpret_cast<uint16_t*>(start + 16 * kPitch)[row]; }
};

// Bits of a word of the page, and which of its bits are of any channel.
struct PlaneWord {
  unsigned bits, mask;
};
OSCAR_DEVICE PlaneWord operator|(PlaneWord a, PlaneWord b) {
  return {a.bits | b.bits, a.mask | b.mask};
}
OSCAR_DEVICE PlaneWord operator<<(PlaneWord a, int shift) {
  return {a.bits << shift, a.mask << shift};
}
// What is of no channel is left as it is.
template <class Word>
OSCAR_DEVICE void store_bits(uint8_t* to, Word bits, Word mask) {
  auto& word = *reinterpret_cast<Word*>(to);
  if (mask == static_cast<Word>(~Word{0})) {
    word = bits;
  } else if (mask != 0) {
    word = static_cast<Word>((word & ~mask) | bits);
  }
}
// In a word that another thread may change elsewhere at the same time.
OSCAR_DEVICE void store_shared_bits(uint8_t* to, PlaneWord word) {
  atomicAnd(reinterpret_cast<unsigned*>(to), ~word.mask);
  atomicOr(reinterpret_cast<unsigned*>(to), word.bits);
}

template <int D>
struct PlaneStore {
  CodeStage<D> codes;
  RowPlace at;  // of row lane / 2
  int lane, partner;
  bool paired;  // keys: the token that has the other nibbles is that of `partner`

  OSCAR_DEVICE PlaneStore(const CodeStage<D>& codes, const RowPlace& at, int lane)
      : codes(codes), at(at), lane(lane) {
    const int other = lane + (at.token % 2 == 0 ? 2 : -2);
    partner = other & 31;
    const auto mine = reinterpret_cast<unsigned long long>(at.block);
    const auto block = __shfl_sync(kWarp, mine, partner);
    const int token = __shfl_sync(kWarp, at.token, partner);
    // A row that is not stored has a block of no page.
    paired = at.stored && partner == other && block == mine && token == (at.token ^ 1);
  }

  OSCAR_DEVICE void store(const PlaneArguments& p) const {
    uint8_t* to = at.block;
    int octet = 0;
#pragma unroll 1
    for (int c = 0; c < p.pairs; ++c, to += kPlaneChunk, octet += kChunkPairs / 8) {
      p.keys ? store_keys<2>(p, octet, to) : store_values<2>(p, octet, to);
    }
#pragma unroll 1
    for (int c = 0; c < p.singles; ++c, to += kPlaneChunk, octet += kChunkSingles / 8) {
      p.keys ? store_keys<1>(p, octet, to) : store_values<1>(p, octet, to);
    }
    if (p.norm && at.stored && lane % 2 == 0)
      *reinterpret_cast<uint16_t*>(to + 2 * at.token) = codes.norm(lane / 2);
  }

 private:
  // Octets `first`, first + kEvery, .. of the chunk of places of kWidth bits that begins at octet `chunk`.
  template <int kWidth, int kEvery>
  OSCAR_DEVICE PlaneWord gather(const PlaneArguments& p, int chunk, int first) const {
    PlaneWord all{0, 0};
#pragma unroll
    for (int q = 0; q < 8 / kWidth; q += kEvery) {
      const unsigned from = p.octets[chunk + first + q];
      if (from == kNoOctet) break;
      constexpr unsigned kMask = kWidth == 2 ? 0x03030303u : 0x01010101u;
      const unsigned code = codes.get(lane / 2, from / 2, lane % 2);
      all = all | PlaneWord{code >> (2 * (from & 1)) & kMask, kMask} << (kWidth * (q / kEvery));
    }
    return all;
  }
  template <int kWidth>
  OSCAR_DEVICE void store_values(const PlaneArguments& p, int octet, uint8_t* chunk) const {
    const PlaneWord word = gather<kWidth, 1>(p, octet, 0);
    if (!at.stored) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      store_bits(chunk + 64 * (4 * (lane % 2) + j) + at.token, static_cast<uint8_t>(word.bits >> (8 * j)),
                 static_cast<uint8_t>(word.mask));
    }
  }
  // Of two tokens together, that of even number stores the words of even octets. Nobody else has their words.
  template <int kWidth>
  OSCAR_DEVICE void store_keys(const PlaneArguments& p, int octet, uint8_t* chunk) const {
    const PlaneWord word[2] = {gather<kWidth, 2>(p, octet, 0), gather<kWidth, 2>(p, octet, 1)};
    const int odd = at.token & 1;
    const unsigned got = __shfl_sync(kWarp, odd ? word[0].bits : word[1].bits, partner);
    uint8_t* to = chunk + 64 * (at.token / 8) + 16 * (lane % 2) + 4 * (at.token % 8 / 2);
    if (paired) {
      const PlaneWord kept = odd ? word[1] : word[0];
      const unsigned both = odd ? got | kept.bits << 4 : got << 4 | kept.bits;
      store_bits(to + 32 * odd, both, kept.mask | kept.mask << 4);
    } else if (at.stored) {
      store_shared_bits(to, word[0] << (4 * odd));
      store_shared_bits(to + 32, word[1] << (4 * odd));
    }
  }
};

}  // namespace oscar::cuda
