#include "formats/tensor.h"

#include <cstring>
#include <limits>

#include "formats/error.h"

namespace oscar {

std::optional<int64_t> byte_count(const Shape& shape, size_t size) {
  bool empty = false;
  for (const auto extent : shape) {
    if (extent < 0) return std::nullopt;
    empty |= extent == 0;
  }
  if (empty) return 0;
  auto total = static_cast<int64_t>(size);
  for (const auto extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  return total;
}

std::optional<int64_t> byte_count(const Shape& shape, DType dtype) {
  if (const size_t size = info(dtype).size()) return byte_count(shape, size);
  const auto bits = byte_count(shape, info(dtype).bits);
  return bits && *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

int64_t element_count(const Shape& shape) {
  const auto count = byte_count(shape, 1);
  if (!count) throw invalid("shape {} is negative or has more than 2^63 - 1 elements", to_string(shape));
  return *count;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<float> Tensor::floats() const {
  std::vector<float> values(static_cast<size_t>(count()));
  to_float(dtype, bytes.data(), values.size(), values.data());
  return values;
}
std::vector<double> Tensor::doubles() const {
  std::vector<double> values(static_cast<size_t>(count()));
  to_double(dtype, bytes.data(), values.size(), values.data());
  return values;
}

template <typename T>
static std::vector<int64_t> widened(const Tensor& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
    if (std::cmp_greater(value, std::numeric_limits<int64_t>::max())) {
      throw failure("element {} of an integer tensor is {}, above 2^63 - 1", i, value);
    }
    values[i] = static_cast<int64_t>(value);
  }
  return values;
}
std::vector<int64_t> Tensor::integers() const {
  switch (dtype) {
    case DType::I64:
      return widened<int64_t>(*this);
    case DType::I32:
      return widened<int32_t>(*this);
    case DType::I16:
      return widened<int16_t>(*this);
    case DType::I8:
      return widened<int8_t>(*this);
    case DType::U64:
      return widened<uint64_t>(*this);
    case DType::U32:
      return widened<uint32_t>(*this);
    case DType::U16:
      return widened<uint16_t>(*this);
    case DType::U8:
      return widened<uint8_t>(*this);
    default:
      throw invalid("expected a tensor of an integer dtype, found {} {}", info(dtype).name, to_string(shape));
  }
}

void check_size(const Tensor& tensor) {
  const auto expected = byte_count(tensor.shape, tensor.dtype);
  if (!expected || static_cast<uint64_t>(*expected) != tensor.bytes.size()) {
    throw invalid("a tensor of {} {} was given {} bytes", info(tensor.dtype).name, to_string(tensor.shape),
                  tensor.bytes.size());
  }
}

Tensor make_tensor(DType dtype, Shape shape, std::vector<std::byte> bytes) {
  auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  Tensor tensor{dtype, std::move(shape), std::span(*kept), kept};
  check_size(tensor);
  return tensor;
}

void expect(const Tensor& tensor, DType dtype, const Shape& shape, const std::string& where) {
  if (tensor.dtype == dtype && tensor.shape == shape) return;
  throw failure("{}: expected {} {}, found {} {}", where, info(dtype).name, to_string(shape),
                info(tensor.dtype).name, to_string(tensor.shape));
}

}  // namespace oscar
