#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "formats/error.h"

namespace oscar {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) ::close(fd);
    }
  };
  // Non-blocking: opening a pipe that nobody writes to must not hang. Regular files ignore the flag.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw invalid("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0)
    throw failure("{}: cannot stat: {}", path.string(), std::strerror(errno));
  if (S_ISDIR(status.st_mode)) throw invalid("{}: expected a file, found a directory", path.string());
  if (!S_ISREG(status.st_mode)) {
    throw invalid("{}: expected a regular file, found a device, pipe or socket: copy it to a file first",
                  path.string());
  }
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  if (const auto size = static_cast<size_t>(status.st_size)) {  // a map of zero bytes is an error
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (start == MAP_FAILED)
      throw failure("{}: cannot map {} bytes: {}", path.string(), size, std::strerror(errno));
    mapped->bytes_ = {static_cast<const std::byte*>(start), size};
  }
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::forget(std::span<const std::byte> part) {
  // Only whole pages inside the part: its neighbours may still be in use.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(part.data());
  const auto begin = (first + page - 1) & ~(page - 1), end = (first + part.size()) & ~(page - 1);
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace oscar
