// Independent items over threads. Results belong to their index, so nothing depends on the number of threads.
#pragma once
#include <cstdint>
#include <functional>

namespace oscar {

// work(i) once for every i in [0, count), at most `threads` at a time (at least one: the caller's). When
// items throw, the exception of the lowest index is thrown on, so that the message is the same for any number
// of threads; items that were not begun are then left out.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work);

}  // namespace oscar
