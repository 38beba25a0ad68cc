// A dense, row-major, little-endian tensor whose bytes somebody keeps alive: a mapped file or a vector.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/dtype.h"

namespace oscar {

using Shape = std::vector<int64_t>;
int64_t element_count(const Shape& shape);  // std::invalid_argument if negative or above 2^63 - 1
// Bytes of `shape` at `size` bytes per element, for shapes that a file claims: nullopt if negative or above
// 2^63 - 1.
std::optional<int64_t> byte_count(const Shape& shape, size_t size);
// The same for a dtype; also nullopt where elements that share a byte do not fill their last one.
std::optional<int64_t> byte_count(const Shape& shape, DType dtype);
std::string to_string(const Shape& shape);  // "[30, 3, 64, 64]"

struct Tensor {
  DType dtype = DType::F32;
  Shape shape;
  std::span<const std::byte> bytes;   // byte_count(shape, dtype), no alignment promised
  std::shared_ptr<const void> owner;  // keeps `bytes` alive; copies of a Tensor share it

  int64_t count() const { return element_count(shape); }
  std::vector<float> floats() const;
  std::vector<double> doubles() const;
  std::vector<int64_t> integers() const;  // integer dtypes only, else std::invalid_argument
};

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::F64;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::I64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::U8;
}

// Takes the values over; throws std::invalid_argument when their number is not that of the shape.
Tensor make_tensor(DType dtype, Shape shape, std::vector<std::byte> bytes);
// Throws std::invalid_argument unless `bytes` has the size that dtype and shape say.
void check_size(const Tensor& tensor);
template <typename T>
Tensor make_tensor(Shape shape, std::vector<T> values) {
  auto kept = std::make_shared<const std::vector<T>>(std::move(values));
  Tensor t{dtype_of<T>(), std::move(shape), std::as_bytes(std::span(*kept)), kept};
  check_size(t);
  return t;
}

// Throws std::runtime_error "{where}: expected F32 [64, 64], found BF16 [128, 128]" unless dtype and shape
// match.
void expect(const Tensor& tensor, DType dtype, const Shape& shape, const std::string& where);

}  // namespace oscar
