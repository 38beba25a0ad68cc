#include "formats/atomic_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "formats/error.h"
#include "formats/temporaries.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

std::runtime_error write_error(const fs::path& path, std::string_view action, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return failure("{}: cannot {}: {}{}", path.string(), action, std::strerror(error),
                 full ? ": free some space or write elsewhere; nothing was left behind" : "");
}

void write_part(int fd, std::span<const std::byte> bytes, const fs::path& destination) {
  while (!bytes.empty()) {
    const auto n = ::write(fd, bytes.data(), std::min(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw write_error(destination, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void write_all(int fd, const FileParts& parts, const fs::path& destination) {
  for (const auto& part : parts) write_part(fd, part, destination);
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// A link is followed: it is its target that is replaced.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const auto target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

}  // namespace

AtomicFile::AtomicFile(fs::path destination) : destination_(resolved(destination)) {
  const auto name = destination_.filename().string();
  const auto directory = directory_of(destination_);
  std::error_code ignored;
  if (name.empty() || fs::is_directory(destination_, ignored)) {
    throw invalid("{}: expected a file name, found a directory", destination_.string());
  }
  const auto status = fs::status(destination_, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw invalid("{}: is not a regular file and cannot be replaced by one", destination_.string());
  }
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    // A name may have 255 bytes, of which the additions take up to 32.
    temporary_ = directory / fmt::format(".{}.{}-{}.tmp", name.substr(0, 220), getpid(), counter++);
    const Descriptor file(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file >= 0) {
      remember_temporary(temporary_);
      return;
    }
    if (errno == EEXIST) continue;  // left by a killed process that had this number
    const int error = errno;
    if (error == ENOSPC || error == EDQUOT || error == EIO) throw write_error(destination_, "create", error);
    throw invalid("{}: cannot create a file in {}: {}", destination_.string(), directory.string(),
                  std::strerror(error));
  }
  throw failure("{}: a thousand temporary files of this name are in the way in {}", destination_.string(),
                directory.string());
}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  forget_temporary(temporary_);
}

void AtomicFile::commit() {
  if (temporary_.empty()) throw std::logic_error("AtomicFile::commit called twice");
  Descriptor file(::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file < 0 || ::fsync(file) != 0 || file.close() != 0) throw write_error(destination_, "flush", errno);
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0)
    throw write_error(destination_, "rename into place", errno);
  forget_temporary(temporary_);
  temporary_.clear();
  // The name is durable once its directory is. Some file systems cannot flush one, some directories cannot be
  // read.
  const Descriptor directory(::open(directory_of(destination_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory >= 0 && ::fsync(directory) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS) {
    throw write_error(destination_, "flush the directory", errno);
  }
}

void write_file(const fs::path& destination, const FileParts& parts) {
  std::error_code ignored;
  const auto status = fs::status(destination, ignored);
  if (fs::is_character_file(status) || fs::is_fifo(status)) {
    Descriptor file(::open(destination.c_str(), O_WRONLY | O_CLOEXEC));
    if (file < 0)
      throw invalid("{}: cannot open for writing: {}", destination.string(), std::strerror(errno));
    write_all(file, parts, destination);
    if (file.close() != 0) throw write_error(destination, "close", errno);
    return;
  }
  AtomicFile atomic(destination);
  Descriptor file(::open(atomic.path().c_str(), O_WRONLY | O_CLOEXEC));
  if (file < 0) throw write_error(destination, "open", errno);
  write_all(file, parts, destination);
  if (file.close() != 0) throw write_error(destination, "close", errno);
  atomic.commit();
}
void write_file(const fs::path& destination, std::span<const std::byte> bytes) {
  write_file(destination, FileParts{bytes});
}
void write_file(const fs::path& destination, std::string_view text) {
  write_file(destination, std::as_bytes(std::span(text)));
}

std::string read_text(const fs::path& path, size_t limit) {
  const bool standard = path == "-";
  const auto name = standard ? std::string("standard input") : path.string();
  const Descriptor file(standard ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file < 0) throw invalid("{}: cannot open: {}", name, std::strerror(errno));
  std::string text;
  std::string part(size_t{1} << 20, '\0');
  for (;;) {
    const auto n = ::read(file, part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EISDIR) throw invalid("{}: expected a file, found a directory", name);
    if (n < 0) throw failure("{}: cannot read: {}", name, std::strerror(errno));
    if (n == 0) return text;
    if (static_cast<size_t>(n) > limit - text.size())
      throw invalid("{}: is larger than the limit of {} bytes", name, limit);
    text.append(part, 0, static_cast<size_t>(n));
  }
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (fs::is_directory(path)) return;
  if (fs::exists(path)) throw invalid("{}: expected a directory, found a file", path.string());
  throw invalid("{}: cannot make the directory: {}", path.string(), error.message());
}

HoldInterrupts::HoldInterrupts() {
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGINT);
  sigaddset(&held, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &held, &before_);
}
HoldInterrupts::~HoldInterrupts() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace oscar
