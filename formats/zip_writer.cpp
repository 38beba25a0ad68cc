#include <zlib.h>

#include <algorithm>

#include "formats/bytes.h"
#include "formats/zip.h"

namespace oscar {

namespace {

constexpr size_t kAlign = 64, kLocalSize = 30;
constexpr uint16_t kFlags = 0x0808;  // sizes follow the data; names are UTF-8

template <typename... Fields>
void put(std::string& out, Fields... fields) {
  (out.append(reinterpret_cast<const char*>(&fields), sizeof(fields)), ...);
}

}  // namespace

void ZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  ZipMember member{name, bytes_.size(), bytes.size(), bytes.size(), 0, 0};
  constexpr uint64_t kLimit = 0xffffffff;
  if (bytes.size() >= kLimit || bytes_.size() + bytes.size() + 1024 + name.size() >= kLimit) {
    throw invalid(
        "a .pt file of 4 GiB or more is not supported: '{}' of {} bytes does not fit; write safetensors",
        name, bytes.size());
  }
  if (name.size() > 1024) throw invalid("a member name of {} bytes is too long for a .pt file", name.size());
  member.crc = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  const size_t data = bytes_.size() + kLocalSize + name.size() + 4;  // 4: head of the padding field
  const auto padding = static_cast<uint16_t>((kAlign - data % kAlign) % kAlign);
  const uint16_t version = 0, method = 0, time = 0, date = 0;
  put(bytes_, uint32_t{0x04034b50}, version, kFlags, method, time, date, uint32_t{0}, uint32_t{0},
      uint32_t{0}, static_cast<uint16_t>(name.size()), static_cast<uint16_t>(4 + padding));
  bytes_ += name;
  bytes_ += "FB";
  put(bytes_, padding);
  bytes_.append(padding, 'Z');
  bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  put(bytes_, uint32_t{0x08074b50}, member.crc, static_cast<uint32_t>(member.packed),
      static_cast<uint32_t>(member.size));
  members_.push_back(std::move(member));
}
void ZipWriter::add(const std::string& name, std::string_view text) {
  add(name, std::as_bytes(std::span(text)));
}

std::string ZipWriter::finish() {
  const size_t begin = bytes_.size();
  const uint16_t none = 0;
  for (const auto& member : members_) {
    put(bytes_, uint32_t{0x02014b50}, none, none, kFlags, none, none, none, member.crc,
        static_cast<uint32_t>(member.packed), static_cast<uint32_t>(member.size),
        static_cast<uint16_t>(member.name.size()), none, none, none, none, uint32_t{0},
        static_cast<uint32_t>(member.header));
    bytes_ += member.name;
  }
  const size_t size = bytes_.size() - begin;
  // The zip64 end is always there, as in torch's files; a codebook of 65,535 storages and more needs it for
  // the count.
  const uint64_t total = members_.size(), end = bytes_.size();
  put(bytes_, uint32_t{0x06064b50}, uint64_t{44}, uint16_t{0x031e}, uint16_t{45}, uint32_t{0}, uint32_t{0},
      total, total, uint64_t{size}, uint64_t{begin});
  put(bytes_, uint32_t{0x07064b50}, uint32_t{0}, end, uint32_t{1});
  const auto count = static_cast<uint16_t>(std::min<size_t>(total, 0xffff));
  put(bytes_, uint32_t{0x06054b50}, none, none, count, count, static_cast<uint32_t>(size),
      static_cast<uint32_t>(begin), none);
  return std::move(bytes_);
}

}  // namespace oscar
