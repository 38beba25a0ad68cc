// A directory that appears whole or not at all.
#pragma once
#include <filesystem>

namespace oscar {

// path() is a directory beside `destination` that becomes it on publish() and is removed by the destructor
// otherwise. std::invalid_argument when the destination exists and is not an empty directory, or cannot be
// made.
class PendingDirectory {
 public:
  explicit PendingDirectory(std::filesystem::path destination);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void publish();

 private:
  std::filesystem::path destination_, path_;
};

}  // namespace oscar
