// A bounds-checked cursor over the bytes of a file. Every parser reads through it, so that no length field of
// a hostile file is believed before it is checked; errors are "{file}: offset {}: {reason}".
#pragma once
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "formats/error.h"

namespace oscar {

static_assert(std::endian::native == std::endian::little,
              "file formats here are little-endian, read in place");

// Foreign text for a message: printable ASCII, at most 80 characters.
inline std::string shown(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  std::string out(text.substr(0, kMaxShown));
  for (auto& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kMaxShown ? out + "…" : out;
}

class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string file, size_t offset = 0)
      : bytes_(bytes), file_(std::move(file)), offset_(offset) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }
  const std::string& file() const { return file_; }

  std::span<const std::byte> take(uint64_t n, std::string_view what) {
    if (n > remaining()) {
      throw fail(fmt::format("{} needs {} bytes, {} are left: the file is truncated or corrupt", what, n,
                             remaining()));
    }
    const auto part = bytes_.subspan(offset_, static_cast<size_t>(n));
    offset_ += static_cast<size_t>(n);
    return part;
  }
  template <typename T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  std::string_view text(uint64_t n, std::string_view what) {
    const auto part = take(n, what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  // The next n bytes as a reader of their own, which counts offsets as this one does.
  ByteReader part(uint64_t n, std::string_view what) {
    const auto begin = offset_;
    take(n, what);
    return {bytes_.first(offset_), file_, begin};
  }
  // An error at the present place or another one, for the caller to throw.
  std::runtime_error fail(std::string_view why) const { return fail_at(offset_, why); }
  std::runtime_error fail_at(uint64_t offset, std::string_view why) const {
    return failure("{}: offset {}: {}", file_, offset, why);
  }

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  size_t offset_;
};

}  // namespace oscar
