#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>

#include "formats/bytes.h"
#include "formats/zip.h"

namespace oscar {

namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr size_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56, kCentralSize = 46, kLocalSize = 30;
constexpr uint16_t kStored = 0, kDeflated = 8;
constexpr uint64_t kMaxRatio = 1032;  // of deflate: 258 bytes for two bits

template <typename T>
T get(std::span<const std::byte> bytes, size_t offset) {  // the caller has checked the size
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The end record is the last thing in the file, but for a comment of up to 65,535 bytes.
size_t find_end(std::span<const std::byte> file, const std::string& name) {
  for (size_t tail = kEndSize; tail <= std::min<size_t>(file.size(), kEndSize + 65535); ++tail) {
    const size_t at = file.size() - tail;
    if (get<uint32_t>(file, at) == kEnd && get<uint16_t>(file, at + 20) == tail - kEndSize) return at;
  }
  throw failure("{}: offset {}: no zip directory before the end: the file is truncated or is not a zip", name,
                file.size());
}

struct Directory {
  uint64_t members, size, offset;
};

Directory find_directory(std::span<const std::byte> file, const std::string& name) {
  const size_t end = find_end(file, name);
  Directory directory{get<uint16_t>(file, end + 10), get<uint32_t>(file, end + 12),
                      get<uint32_t>(file, end + 16)};
  const bool has_locator = end >= kLocatorSize && get<uint32_t>(file, end - kLocatorSize) == kLocator64;
  size_t limit = end;
  if (has_locator &&
      (directory.members == 0xffff || directory.size == 0xffffffff || directory.offset == 0xffffffff)) {
    const auto at = get<uint64_t>(file, end - kLocatorSize + 8);
    if (at > end - kLocatorSize || end - kLocatorSize - at < kEnd64Size ||
        get<uint32_t>(file, at) != kEnd64) {
      throw failure("{}: offset {}: expected the zip64 end record", name, at);
    }
    directory = {get<uint64_t>(file, at + 32), get<uint64_t>(file, at + 40), get<uint64_t>(file, at + 48)};
    limit = at;
  }
  if (directory.offset > limit || directory.size > limit - directory.offset ||
      directory.members > directory.size / kCentralSize) {
    throw failure("{}: offset {}: the zip directory ({} members in {} bytes at {}) does not fit in the file",
                  name, limit, directory.members, directory.size, directory.offset);
  }
  return directory;
}

// Sizes and offset that did not fit in 32 bits are, in this order, in the extra field of id 1.
void read_zip64(ByteReader extra, ZipMember& member) {
  while (extra.remaining() >= 4) {
    const auto id = extra.read<uint16_t>("an extra field");
    const auto length = extra.read<uint16_t>("an extra field");
    auto field = extra.part(length, "an extra field");
    if (id != 1) continue;
    for (auto* value : {&member.size, &member.packed, &member.header}) {
      if (*value == 0xffffffff) *value = field.read<uint64_t>("a zip64 size");
    }
    return;
  }
}

ZipMember read_member(ByteReader& in) {
  const auto begin = in.offset();
  if (in.read<uint32_t>("a directory entry") != kCentral)
    throw in.fail_at(begin, "expected a zip directory entry");
  const auto fixed = in.take(kCentralSize - 4, "a directory entry");
  ZipMember member;
  member.method = get<uint16_t>(fixed, 6);
  member.crc = get<uint32_t>(fixed, 12);
  member.packed = get<uint32_t>(fixed, 16);
  member.size = get<uint32_t>(fixed, 20);
  member.header = get<uint32_t>(fixed, 38);
  member.name = in.text(get<uint16_t>(fixed, 24), "a member's name");
  read_zip64(in.part(get<uint16_t>(fixed, 26), "an extra field"), member);
  in.take(get<uint16_t>(fixed, 28), "a comment");
  const auto refuse = [&](std::string_view why) {
    return in.fail_at(begin, fmt::format("member '{}' {}", shown(member.name), why));
  };
  if (get<uint16_t>(fixed, 4) & 1) throw refuse("is encrypted: only plain members are read");
  if (member.method != kStored && member.method != kDeflated) {
    throw refuse(
        fmt::format("has the compression method {}: only stored and deflate are supported", member.method));
  }
  if (member.method == kStored && member.packed != member.size)
    throw refuse(fmt::format("is stored and has two sizes, {} and {}", member.packed, member.size));
  return member;
}

uint32_t crc_of(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Raw deflate of exactly `size` bytes, or nothing.
std::optional<std::vector<std::byte>> inflated(std::span<const std::byte> packed, uint64_t size) {
  if (size / kMaxRatio > packed.size()) return std::nullopt;
  std::vector<std::byte> out(size);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  std::byte spare;  // zlib wants somewhere to write even for an empty member
  size_t in = 0, done = 0;
  int state = Z_OK;
  while (state == Z_OK) {
    constexpr size_t kStep = size_t{1} << 30;  // zlib counts in 32 bits
    const size_t give = std::min(packed.size() - in, kStep),
                 room = std::min<size_t>(out.size() - done, kStep);
    stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(packed.data() + in));
    stream.avail_in = static_cast<uInt>(give);
    stream.next_out = reinterpret_cast<Bytef*>(out.empty() ? &spare : out.data() + done);
    stream.avail_out = static_cast<uInt>(room);
    state = inflate(&stream, Z_NO_FLUSH);
    const size_t took = give - stream.avail_in, made = room - stream.avail_out;
    in += took;
    done += made;
    if (state == Z_OK && took == 0 && made == 0) break;
  }
  if (state != Z_STREAM_END || done != size) return std::nullopt;
  return out;
}

}  // namespace

ZipReader::ZipReader(std::shared_ptr<const MappedFile> file, Budget& budget) : file_(std::move(file)) {
  const auto name = file_->path().string();
  const auto directory = find_directory(file_->bytes(), name);
  directory_ = directory.offset;
  ByteReader in(file_->bytes().first(directory.offset + directory.size), name, directory.offset);
  // Of the index: nodes, and twice the buckets while it grows.
  constexpr size_t kIndexed = sizeof(std::string) + 6 * sizeof(void*);
  for (uint64_t i = 0; i < directory.members; ++i) {
    const auto begin = in.offset();
    auto member = read_member(in);
    budget.grow(members_, 1, in, "the zip directory");
    budget.take(kIndexed + 2 * (member.name.size() + 1), in, "the zip directory");
    if (!index_.emplace(member.name, i).second)
      throw in.fail_at(begin, fmt::format("member '{}' appears twice", shown(member.name)));
    members_.push_back(std::move(member));
  }
}

const ZipMember* ZipReader::find(const std::string& name) const {
  const auto entry = index_.find(name);
  return entry == index_.end() ? nullptr : &members_[entry->second];
}

ZipContent ZipReader::read(const ZipMember& member, Budget& budget) const {
  const auto all = file_->bytes();
  const auto name = file_->path().string();
  const auto refuse = [&](std::string_view why) {
    return failure("{}: offset {}: member '{}': {}", name, member.header, shown(member.name), why);
  };
  if (member.header > all.size()) throw refuse("begins after the end of the file");
  ByteReader in(all, name, member.header);
  if (in.read<uint32_t>("the local header") != kLocal) throw refuse("expected a zip local header");
  const auto fixed = in.take(kLocalSize - 4, "the local header");
  const auto local_name = in.text(get<uint16_t>(fixed, 22), "the name");
  if (local_name != member.name)
    throw refuse(fmt::format("the local header calls it '{}'", shown(local_name)));
  in.take(get<uint16_t>(fixed, 24), "the extra field");
  ZipContent content{in.take(member.packed, "the data"), file_};
  if (member.method == kDeflated) {
    budget.take(member.size, in, fmt::format("member '{}'", shown(member.name)));
    auto plain = inflated(content.bytes, member.size);
    if (!plain) throw refuse(fmt::format("the deflated data is corrupt or is not {} bytes", member.size));
    auto bytes = std::make_shared<const std::vector<std::byte>>(*std::move(plain));
    content = {*bytes, bytes};
  }
  if (const auto crc = crc_of(content.bytes); crc != member.crc) {
    throw refuse(fmt::format("CRC is {:08x}, expected {:08x}: the file is corrupt", crc, member.crc));
  }
  return content;
}

}  // namespace oscar
