#include <algorithm>

#include "formats/pickle.h"

namespace oscar {

namespace {

bool contiguous(const Shape& shape, const Shape& strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;  // its stride is never used
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// The elements in row-major order of the shape; every index is inside, the caller has checked.
std::vector<std::byte> gathered(std::span<const std::byte> storage, size_t element, int64_t offset,
                                const Shape& shape, const Shape& strides, int64_t count) {
  std::vector<std::byte> out(static_cast<size_t>(count) * element);
  Shape index(shape.size(), 0);
  int64_t at = offset;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out.data() + static_cast<size_t>(i) * element,
                storage.data() + static_cast<size_t>(at) * element, element);
    for (size_t d = shape.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < shape[d]) break;
      at -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace

Tensor rebuild_tensor(const ZipContent& storage, DType dtype, int64_t offset, Shape shape,
                      const Shape& strides, const ByteReader& in, Budget& budget) {
  const auto element = info(dtype).size();
  const auto described = [&] {
    return fmt::format("{} {} of strides {} at element {}", info(dtype).name, to_string(shape),
                       to_string(strides), offset);
  };
  if (shape.size() != strides.size() || shape.size() > 64 || offset < 0 ||
      std::ranges::any_of(strides, [](int64_t stride) { return stride < 0; })) {
    throw in.fail("not a tensor: " + described());
  }
  const auto bytes = byte_count(shape, element);
  if (!bytes) throw in.fail("not a tensor: " + described());
  if (*bytes == 0) return {dtype, std::move(shape), {}, storage.owner};
  int64_t last = offset;
  bool overflow = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t reach;
    overflow |= __builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
                __builtin_add_overflow(last, reach, &last);
  }
  const auto available = static_cast<int64_t>(storage.bytes.size() / element);
  if (overflow || last >= available) {
    throw in.fail(fmt::format("{} reaches outside its storage of {} elements", described(), available));
  }
  if (contiguous(shape, strides)) {
    const auto part =
        storage.bytes.subspan(static_cast<size_t>(offset) * element, static_cast<size_t>(*bytes));
    return {dtype, std::move(shape), part, storage.owner};
  }
  budget.take(static_cast<uint64_t>(*bytes), in, "a tensor " + described());
  auto copy =
      gathered(storage.bytes, element, offset, shape, strides, *bytes / static_cast<int64_t>(element));
  return make_tensor(dtype, std::move(shape), std::move(copy));
}

}  // namespace oscar
