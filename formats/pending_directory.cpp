#include "formats/pending_directory.h"

#include <unistd.h>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/temporaries.h"

namespace oscar {

namespace fs = std::filesystem;

PendingDirectory::PendingDirectory(fs::path destination) : destination_(std::move(destination)) {
  // "out/" names the same directory as "out".
  if (!destination_.has_filename()) destination_ = destination_.parent_path();
  if (destination_.empty()) throw invalid("the output directory has an empty name");
  if (fs::exists(destination_) && (!fs::is_directory(destination_) || !fs::is_empty(destination_)))
    throw invalid("{}: expected a new or an empty directory", destination_.string());
  const fs::path parent = destination_.parent_path().empty() ? fs::path(".") : destination_.parent_path();
  make_directory(parent);
  const auto pending = parent / fmt::format(".{}.{}.tmp", destination_.filename().string(), getpid());
  make_directory(pending);
  path_ = pending;
  remember_temporary(path_);
}

PendingDirectory::~PendingDirectory() {
  std::error_code ignored;
  if (path_.empty()) return;
  fs::remove_all(path_, ignored);
  forget_temporary(path_);
}

void PendingDirectory::publish() {
  std::error_code error;
  fs::rename(path_, destination_, error);  // over an empty directory too
  if (error) throw failure("{}: could not be put in place: {}", destination_.string(), error.message());
  forget_temporary(path_);
  path_.clear();
}

}  // namespace oscar
