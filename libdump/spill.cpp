#include "libdump/spill.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "formats/error.h"

namespace oscar {
namespace {

// Open, and without a name: no crash and no signal can leave it behind.
int nameless_file(const std::filesystem::path& folder) {
  int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  std::string name = (folder / "spill-XXXXXX").string();  // a file system without O_TMPFILE
  fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) throw failure("{}: cannot create a temporary file: {}", folder.string(), std::strerror(errno));
  ::unlink(name.c_str());
  return fd;
}

}  // namespace

Spill::Spill(const std::vector<int64_t>& sizes, const std::filesystem::path& folder) {
  if (folder.empty()) {
    for (const int64_t size : sizes) {
      memory_.push_back(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(size)));
      pieces_.push_back(memory_.back().get());
    }
    return;
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const int64_t size : sizes) {
    bytes_.push_back((static_cast<size_t>(size) * sizeof(float) + page - 1) / page * page);
    mapped_ += bytes_.back();
  }
  if (mapped_ == 0) mapped_ = page;
  const int fd = nameless_file(folder);
  const int full = ::posix_fallocate(fd, 0, static_cast<off_t>(mapped_));
  if (full == 0) map_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = full != 0 ? full : errno;
  ::close(fd);
  if (full != 0 || map_ == MAP_FAILED) {
    map_ = nullptr;
    throw failure("{}: cannot take {} bytes for what does not fit into --memory: {}{}", folder.string(),
                  mapped_, std::strerror(error),
                  full == ENOSPC ? ": free some space, or allow more memory" : "");
  }
  auto* at = static_cast<std::byte*>(map_);
  for (const size_t bytes : bytes_) {
    pieces_.push_back(reinterpret_cast<float*>(at));
    at += bytes;
  }
}

Spill::~Spill() {
  if (map_) ::munmap(map_, mapped_);
}

void Spill::put_away(size_t i) const {
  if (map_ && bytes_[i] > 0) ::madvise(pieces_[i], bytes_[i], MADV_DONTNEED);  // shared: the file keeps them
}

}  // namespace oscar
