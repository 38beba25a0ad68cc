// A whole file mapped read-only.
#pragma once
#include <filesystem>
#include <memory>
#include <span>

namespace oscar {

class MappedFile {
 public:
  // A missing or unreadable path is the caller's fault (std::invalid_argument), a failed map the world's.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that these bytes will not be read again soon (streaming weights larger than memory).
  // Only for bytes of a MappedFile: of any other memory they would be lost.
  static void forget(std::span<const std::byte> part);

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace oscar
