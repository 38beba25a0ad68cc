// Output appears whole or not at all: written beside its destination, flushed, then renamed over it.
#pragma once
#include <signal.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// A path beside `destination` that becomes it on commit() (fsync of file and directory, rename) and is
// removed by the destructor otherwise. For writers that want a path (HDF5); write_file below is for those
// that have bytes. A missing or read-only directory is std::invalid_argument; a failed write, fsync or rename
// std::runtime_error.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path destination);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // exists and is empty
  void commit();

 private:
  std::filesystem::path destination_, temporary_;
};

// Atomic, except that an existing device or pipe (/dev/stdout) is written straight through.
void write_file(const std::filesystem::path& destination, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& destination, std::string_view text);
// The parts one after the other, for files larger than memory: header here, tensors mapped from another file.
using FileParts = std::vector<std::span<const std::byte>>;
void write_file(const std::filesystem::path& destination, const FileParts& parts);
// A text file of at most `limit` bytes; "-" is standard input.
std::string read_text(const std::filesystem::path& path, size_t limit = size_t{4} << 30);

// Holds SIGINT and SIGTERM back from this thread while several files become one result; a signal that came
// meanwhile is delivered at the end. For milliseconds of writing, when no other thread runs.
class HoldInterrupts {
 public:
  HoldInterrupts();
  ~HoldInterrupts();
  HoldInterrupts(const HoldInterrupts&) = delete;
  HoldInterrupts& operator=(const HoldInterrupts&) = delete;

 private:
  sigset_t before_;
};

// Creates the directory and its parents; std::invalid_argument if a file is in the way or it cannot be made.
void make_directory(const std::filesystem::path& path);

}  // namespace oscar
