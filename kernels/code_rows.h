// Rows of a cache that are held as codes, as a kernel sees them.
#pragma once
#include <cstdint>

namespace oscar {

// Turns the packed rows [first, first + count) into float32 (count, D). A kernel may call it from several threads.
struct CodeRows {
  void (*decode)(const void* self, int64_t first, int64_t count, float* rows);
  const void* self;
};

}  // namespace oscar
