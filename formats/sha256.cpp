#include "formats/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "formats/error.h"
#include "formats/mapped_file.h"

namespace oscar {

// FIPS 180-4, 4.2.2: fractional parts of the cube roots of the first 64 primes.
static constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// FIPS 180-4, 6.2.2.
void Sha256::block(const std::byte* p) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) {
    uint32_t word;
    std::memcpy(&word, p + 4 * t, 4);
    w[t] = __builtin_bswap32(word);
  }
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> sum{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += sum[i];
}

void Sha256::update(std::span<const std::byte> bytes) {
  size_t filled = length_ % 64;
  length_ += bytes.size();
  if (filled) {
    const size_t n = std::min(64 - filled, bytes.size());
    std::copy_n(bytes.begin(), n, pending_.begin() + static_cast<ptrdiff_t>(filled));
    bytes = bytes.subspan(n);
    if (filled + n < 64) return;
    block(pending_.data());
  }
  for (; bytes.size() >= 64; bytes = bytes.subspan(64)) block(bytes.data());
  std::ranges::copy(bytes, pending_.begin());
}

std::string Sha256::hex() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const size_t zeros =
      (119 - length_ % 64) % 64 + 1;  // the 0x80 and zeros, up to 8 bytes before a block's end
  const uint64_t big = __builtin_bswap64(bits);
  std::memcpy(padding.data() + zeros, &big, 8);
  update(std::span(padding).first(zeros + 8));
  return fmt::format("{:08x}", fmt::join(state_, ""));
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  Sha256 digest;
  constexpr size_t kStep = size_t{16} << 20;  // so that a file larger than memory does not fill it
  for (auto rest = file->bytes(); !rest.empty();) {
    const auto part = rest.first(std::min(kStep, rest.size()));
    digest.update(part);
    file->forget(part);
    rest = rest.subspan(part.size());
  }
  return digest.hex();
}

}  // namespace oscar
