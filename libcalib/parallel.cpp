#include "libcalib/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace oscar {

void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  int64_t first = count;
  std::exception_ptr error;
  // Items are handed out in order: when one fails, every lower one has begun and will be heard.
  const auto loop = [&] {
    while (!failed) {
      const int64_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = true;
        if (i < first) {
          first = i;
          error = std::current_exception();
        }
      }
    }
  };
  const int64_t helpers = std::clamp<int64_t>(threads, 1, std::max<int64_t>(count, 1)) - 1;
  {
    std::vector<std::jthread> pool;
    for (int64_t i = 0; i < helpers; ++i) pool.emplace_back(loop);
    loop();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace oscar
