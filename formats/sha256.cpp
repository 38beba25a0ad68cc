#include "formats/sha256.h"

#include <algorithm>
#include <cstring>

#include "formats/error.h"
#include "formats/mapped_file.h"
#include "formats/sha256_blocks.h"

namespace oscar {

void Sha256::update(std::span<const std::byte> bytes) {
  size_t filled = length_ % 64;
  length_ += bytes.size();
  if (filled) {
    const size_t n = std::min(64 - filled, bytes.size());
    std::copy_n(bytes.begin(), n, pending_.begin() + static_cast<ptrdiff_t>(filled));
    bytes = bytes.subspan(n);
    if (filled + n < 64) return;
    sha256_blocks(state_.data(), pending_.data(), 1);
  }
  const size_t whole = bytes.size() / 64;
  sha256_blocks(state_.data(), bytes.data(), whole);
  bytes = bytes.subspan(whole * 64);
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
