// SHA-256 (FIPS 180-4), for the digests of provenance.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace oscar {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::string hex();  // finishes; 64 lowercase digits

 private:
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  uint64_t length_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_file(const std::filesystem::path& path);

}  // namespace oscar
