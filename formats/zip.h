// Zip archives as torch.save makes and torch.load takes them: members stored (read: also deflated), zip64 on
// reading.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/budget.h"
#include "formats/mapped_file.h"

namespace oscar {

struct ZipMember {
  std::string name;
  uint64_t header = 0;            // offset of its local header
  uint64_t packed = 0, size = 0;  // bytes in the file and expanded
  uint32_t crc = 0;
  uint16_t method = 0;  // 0 stored, 8 deflated
};

struct ZipContent {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

class ZipReader {
 public:
  // Reads the central directory. Encrypted members, repeated names and members outside the file are
  // std::runtime_error.
  ZipReader(std::shared_ptr<const MappedFile> file, Budget& budget);
  uint64_t directory() const { return directory_; }  // its offset
  const std::vector<ZipMember>& members() const { return members_; }
  const ZipMember* find(const std::string& name) const;
  // CRC checked. Stored members are views of the map, deflated ones take from the budget.
  ZipContent read(const ZipMember& member, Budget& budget) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  uint64_t directory_ = 0;
  std::vector<ZipMember> members_;
  std::unordered_map<std::string, size_t> index_;
};

// Builds an archive in memory, byte for byte as torch's writer would: stored, data aligned to 64 bytes by a
// padding field in the local header, sizes in a descriptor after the data, no times. Archives of 4 GiB and
// more are refused.
class ZipWriter {
 public:
  void add(const std::string& name, std::span<const std::byte> bytes);
  void add(const std::string& name, std::string_view text);
  std::string finish();

 private:
  std::string bytes_;
  std::vector<ZipMember> members_;
};

}  // namespace oscar
