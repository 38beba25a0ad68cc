#include "formats/temporaries.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace oscar {
namespace {

// Paths a signal handler may unlink: plain arrays, because it may neither lock nor allocate.
struct Slot {
  std::atomic<int> state{0};  // 0 free, 1 being filled, 2 live
  pid_t owner = 0;            // a forked child must not remove its parent's files
  char path[4096];
};
Slot slots[64];
static_assert(std::atomic<int>::is_always_lock_free);

// getdents64 and not readdir(), which allocates.
void remove_directory(const char* path) {
  struct Entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
  };
  const int directory = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  alignas(Entry) char buffer[4096];
  long n;
  while ((n = ::syscall(SYS_getdents64, directory, buffer, sizeof(buffer))) > 0) {
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      ::unlinkat(directory, entry->name, 0);  // "." and ".." are refused, and so are directories
      at += entry->length;
    }
  }
  ::close(directory);
  ::rmdir(path);
}

}  // namespace

void remember_temporary(const std::filesystem::path& path) {
  const auto text = std::filesystem::absolute(path).string();
  if (text.size() >= sizeof(Slot::path)) return;
  for (auto& slot : slots) {
    int free = 0;
    if (!slot.state.compare_exchange_strong(free, 1)) continue;
    std::memcpy(slot.path, text.c_str(), text.size() + 1);
    slot.owner = getpid();
    slot.state = 2;
    return;
  }
}

void forget_temporary(const std::filesystem::path& path) {
  const auto text = std::filesystem::absolute(path).string();
  for (auto& slot : slots) {
    if (slot.state == 2 && text == slot.path) slot.state = 0;
  }
}

void remove_temporaries() {
  for (auto& slot : slots) {
    if (slot.state != 2 || slot.owner != getpid()) continue;
    if (::unlink(slot.path) != 0 && (errno == EISDIR || errno == EPERM)) remove_directory(slot.path);
  }
}

}  // namespace oscar
