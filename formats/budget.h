// The memory that a file may ask for: what a reader makes of it, whatever the file says, takes less than four
// times the size of the file and 64 MiB.
#pragma once
#include <vector>

#include "formats/bytes.h"

namespace oscar {

class Budget {
 public:
  explicit Budget(uint64_t bytes) : left_(bytes) {}
  // 4 MiB of the 64 are for what is not counted: zlib's buffers, messages.
  static Budget of_file(uint64_t size) { return Budget(4 * size + (uint64_t{60} << 20)); }

  // std::runtime_error at the place of `in` when it is used up.
  void take(uint64_t bytes, const ByteReader& in, std::string_view what) {
    if (bytes > left_) {
      throw in.fail(
          fmt::format("{} takes {} bytes of memory, far more than the file has: refused", what, bytes));
    }
    left_ -= bytes;
  }
  void give_back(uint64_t bytes) { left_ += bytes; }
  // A string's memory beyond its own object.
  void take_text(size_t length, const ByteReader& in, std::string_view what) {
    if (length >= sizeof(std::string) / 2) take(length + 1, in, what);
  }
  // Room for `more` elements. While a vector moves, both its old and its new place count.
  template <typename T>
  void grow(std::vector<T>& values, size_t more, const ByteReader& in, std::string_view what) {
    const size_t before = values.capacity(), needed = values.size() + more;
    if (needed <= before) return;
    const size_t after = std::max(needed, 2 * before);
    take(after * sizeof(T), in, what);
    values.reserve(after);
    give_back(before * sizeof(T));
  }

 private:
  uint64_t left_;
};

}  // namespace oscar
