#include <zlib.h>

#include <algorithm>
#include <limits>

#include "formats/bytes.h"
#include "formats/zip.h"

namespace oscar {

namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr size_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56, kCentralSize = 46, kLocalSize = 30;
constexpr uint16_t kStored = 0, kDeflated = 8;

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
  throw failure("{}: no zip directory at its end: the file is truncated or is not a zip", name);
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
    throw failure("{}: the zip directory ({} members in {} bytes at {}) does not fit in the file", name,
                  directory.members, directory.size, directory.offset);
  }
  return directory;
}

// Sizes and offset that did not fit in 32 bits are, in this order, in the extra field of id 1.
void read_zip64(ByteReader extra, ZipMember& member) {
  while (extra.remaining() >= 4) {
    const auto id = extra.read<uint16_t>("an extra field");
    const auto length = extra.read<uint16_t>("an extra field");
    ByteReader field(extra.take(length, "an extra field"),
                     extra.file() + ": zip64 field of '" + member.name + "'");
    if (id != 1) continue;
    for (auto* value : {&member.size, &member.packed, &member.header}) {
      if (*value == 0xffffffff) *value = field.read<uint64_t>("a size");
    }
    return;
  }
}

ZipMember read_member(ByteReader& in) {
  if (in.read<uint32_t>("a directory entry") != kCentral) throw in.fail("expected a zip directory entry");
  const auto fixed = in.take(kCentralSize - 4, "a directory entry");
  ZipMember member;
  member.method = get<uint16_t>(fixed, 6);
  member.crc = get<uint32_t>(fixed, 12);
  member.packed = get<uint32_t>(fixed, 16);
  member.size = get<uint32_t>(fixed, 20);
  member.header = get<uint32_t>(fixed, 38);
  member.name = in.text(get<uint16_t>(fixed, 24), "a member's name");
  const auto extra = in.take(get<uint16_t>(fixed, 26), "an extra field");
  in.take(get<uint16_t>(fixed, 28), "a comment");
  read_zip64(ByteReader(extra, in.file()), member);
  if (get<uint16_t>(fixed, 4) & 1) throw in.fail(fmt::format("member '{}' is encrypted", member.name));
  if (member.method != kStored && member.method != kDeflated) {
    throw in.fail(
        fmt::format("member '{}' has the compression method {}: only stored and deflate are supported",
                    member.name, member.method));
  }
  if (member.method == kStored && member.packed != member.size) {
    throw in.fail(
        fmt::format("stored member '{}' has two sizes, {} and {}", member.name, member.packed, member.size));
  }
  return member;
}

uint32_t crc_of(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Raw deflate of exactly `size` bytes.
std::vector<std::byte> inflated(std::span<const std::byte> packed, uint64_t size, const std::string& where) {
  std::vector<std::byte> out(size);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw failure("{}: zlib cannot start", where);
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
  if (state != Z_STREAM_END || done != size) {
    throw failure("{}: the deflated data is corrupt or is not {} bytes", where, size);
  }
  return out;
}

}  // namespace

void Budget::take(uint64_t bytes, std::string_view what) {
  if (bytes > left_) {
    throw failure("{}: {} takes {} bytes of memory, far more than the file has: refused", file_, what, bytes);
  }
  left_ -= bytes;
}

ZipReader::ZipReader(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  const auto name = file_->path().string();
  const auto directory = find_directory(file_->bytes(), name);
  ByteReader in(file_->bytes().first(directory.offset + directory.size), name, directory.offset);
  for (uint64_t i = 0; i < directory.members; ++i) {
    auto member = read_member(in);
    if (!index_.emplace(member.name, i).second)
      throw in.fail(fmt::format("member '{}' appears twice", member.name));
    members_.push_back(std::move(member));
  }
}

const ZipMember* ZipReader::find(const std::string& name) const {
  const auto entry = index_.find(name);
  return entry == index_.end() ? nullptr : &members_[entry->second];
}

ZipContent ZipReader::read(const ZipMember& member, Budget& budget) const {
  const auto where = fmt::format("{}: member '{}'", file_->path().string(), member.name);
  const auto all = file_->bytes();
  if (member.header > all.size())
    throw failure("{}: begins at {}, after the end of the file", where, member.header);
  ByteReader in(all, where, member.header);
  if (in.read<uint32_t>("the local header") != kLocal) throw in.fail("expected a zip local header");
  const auto fixed = in.take(kLocalSize - 4, "the local header");
  const auto name = in.text(get<uint16_t>(fixed, 22), "the name");
  if (name != member.name) throw in.fail(fmt::format("the local header calls it '{}'", name));
  in.take(get<uint16_t>(fixed, 24), "the extra field");
  ZipContent content{in.take(member.packed, "the data"), file_};
  if (member.method == kDeflated) {
    budget.take(member.size, fmt::format("member '{}'", member.name));
    auto bytes = std::make_shared<const std::vector<std::byte>>(inflated(content.bytes, member.size, where));
    content = {*bytes, bytes};
  }
  if (const auto crc = crc_of(content.bytes); crc != member.crc) {
    throw failure("{}: CRC is {:08x}, expected {:08x}: the file is corrupt", where, crc, member.crc);
  }
  return content;
}

}  // namespace oscar
