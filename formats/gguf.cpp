#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_set>

#include "formats/bytes.h"

namespace oscar {

namespace {

// ggml's type ids. Numbers left out were removed from ggml (4, 5, 31-33, 36-38) or mean different layouts in
// different engines (42: Q2_0 has blocks of 32 in one and of 64 in another), so a file with one is refused.
constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
constexpr uint32_t kMaxDepth = 4;     // of arrays in arrays
constexpr uint32_t kMaxDims = 4;      // GGML_MAX_DIMS
constexpr uint64_t kMaxName = 65535;  // bytes of a key or tensor name

size_t least_size(uint32_t type) {  // in the file: what a count is checked against before memory is taken
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kString:
    case kU64:
    case kI64:
    case kF64:
      return 8;
    case kArray:
      return 12;
    default:
      return 0;
  }
}

class Parser {
 public:
  explicit Parser(const MappedFile& file) : in_(file.bytes(), file.path().string()) {}

  ByteReader& in() { return in_; }

  uint64_t count(std::string_view what, size_t least) {
    const auto n = in_.read<uint64_t>(what);
    if (n > in_.remaining() / least) {
      throw in_.fail(fmt::format("{} is {}, but {} bytes are left: the file is truncated or corrupt", what, n,
                                 in_.remaining()));
    }
    return n;
  }
  std::string string(std::string_view what) { return std::string(in_.text(in_.read<uint64_t>(what), what)); }
  std::string name(std::string_view what) {
    const auto length = in_.read<uint64_t>(what);
    if (length > kMaxName)
      throw in_.fail(fmt::format("{} has {} bytes, at most {} are allowed", what, length, kMaxName));
    return std::string(in_.text(length, what));
  }

  GgufValue value(uint32_t type, const std::string& key, uint32_t depth = 0) {
    switch (type) {
      case kU64:
        return {in_.read<uint64_t>(key)};
      case kF32:
        return {double{in_.read<float>(key)}};
      case kF64:
        return {in_.read<double>(key)};
      case kBool:
        return {boolean(key)};
      case kString:
        return {string(key)};
      case kArray:
        return array(key, depth);
      default:
        return {integer(type, key)};
    }
  }

 private:
  int64_t integer(uint32_t type, const std::string& key) {
    switch (type) {
      case kU8:
        return in_.read<uint8_t>(key);
      case kI8:
        return in_.read<int8_t>(key);
      case kU16:
        return in_.read<uint16_t>(key);
      case kI16:
        return in_.read<int16_t>(key);
      case kU32:
        return in_.read<uint32_t>(key);
      case kI32:
        return in_.read<int32_t>(key);
      case kI64:
        return in_.read<int64_t>(key);
      case kU64: {
        const auto value = in_.read<uint64_t>(key);
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          throw in_.fail(fmt::format("'{}' holds {}, above 2^63 - 1", key, value));
        }
        return static_cast<int64_t>(value);
      }
      default:
        throw in_.fail(fmt::format("'{}' has the unknown value type {}", key, type));
    }
  }
  bool boolean(const std::string& key) {
    const auto value = in_.read<uint8_t>(key);
    if (value > 1) throw in_.fail(fmt::format("'{}' is a bool of value {}", key, value));
    return value == 1;
  }
  template <typename T, typename Read>
  std::vector<T> list(uint64_t n, Read read) {
    std::vector<T> values;
    values.reserve(n);
    for (uint64_t i = 0; i < n; ++i) values.push_back(read());
    return values;
  }
  GgufValue array(const std::string& key, uint32_t depth) {
    if (depth == kMaxDepth) throw in_.fail(fmt::format("'{}' nests arrays deeper than {}", key, kMaxDepth));
    const auto type = in_.read<uint32_t>(key);
    const auto least = least_size(type);
    if (!least) throw in_.fail(fmt::format("array '{}' has the unknown element type {}", key, type));
    const auto n = count(key, least);
    switch (type) {
      case kString:
        return {list<std::string>(n, [&] { return string(key); })};
      case kF32:
        return {list<double>(n, [&] { return double{in_.read<float>(key)}; })};
      case kF64:
        return {list<double>(n, [&] { return in_.read<double>(key); })};
      case kBool:
        return {list<bool>(n, [&] { return boolean(key); })};
      case kArray:
        return {list<GgufValue>(n, [&] { return array(key, depth + 1); })};
      default:
        return {list<int64_t>(n, [&] { return integer(type, key); })};
    }
  }

  ByteReader in_;
};

uint32_t read_version(ByteReader& in) {
  if (in.text(4, "the GGUF magic") != "GGUF") throw failure("{}: is not a GGUF file", in.file());
  const auto version = in.read<uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  if (version == 1) throw in.fail("GGUF version 1 is not supported: convert the file to version 3");
  if ((version & 0xffff) == 0) throw in.fail("the file is big-endian GGUF: convert it to little-endian");
  throw in.fail(fmt::format("GGUF version {} is not supported: expected 2 or 3", version));
}

uint64_t alignment_of(const std::map<std::string, GgufValue>& metadata, const ByteReader& in) {
  const auto entry = metadata.find("general.alignment");
  if (entry == metadata.end()) return 32;
  const auto* value = std::get_if<int64_t>(&entry->second.value);
  if (!value || *value <= 0 || !std::has_single_bit(static_cast<uint64_t>(*value))) {
    throw in.fail("'general.alignment' is not a power of two");
  }
  return static_cast<uint64_t>(*value);
}

struct Place {
  uint64_t offset, size;  // from the start of the tensor data
};

// Name, extents, type and offset of one tensor, as the file tells them.
Place read_tensor_info(Parser& parser, GgufTensor& tensor, uint64_t alignment) {
  auto& in = parser.in();
  tensor.name = parser.name("a tensor name");
  const auto refuse = [&](std::string_view why) {
    return in.fail(fmt::format("tensor '{}': {}", tensor.name, why));
  };
  const auto dims = in.read<uint32_t>("the number of dimensions");
  if (dims > kMaxDims) throw refuse(fmt::format("{} dimensions, at most {} are allowed", dims, kMaxDims));
  for (uint32_t i = 0; i < dims; ++i) {
    const auto extent = in.read<uint64_t>("an extent");
    if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      throw refuse("an extent is above 2^63 - 1");
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  const auto id = in.read<uint32_t>("the type");
  tensor.type = find_ggml_type(id);
  if (!tensor.type) throw refuse(fmt::format("unknown ggml type {}", id));
  const auto offset = in.read<uint64_t>("the offset");
  if (offset % alignment)
    throw refuse(fmt::format("offset {} is not a multiple of the alignment {}", offset, alignment));
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % tensor.type->block) {
    throw refuse(fmt::format("rows of {} elements are not whole {} blocks of {}", row, tensor.type->name,
                             tensor.type->block));
  }
  Shape blocks = tensor.shape;
  if (!blocks.empty()) blocks.back() /= tensor.type->block;
  const auto size = byte_count(blocks, tensor.type->bytes);
  if (!size) throw refuse(fmt::format("shape {} is too large", to_string(tensor.shape)));
  return {offset, static_cast<uint64_t>(*size)};
}

void place_tensors(const MappedFile& file, size_t header_end, uint64_t alignment,
                   std::span<GgufTensor> tensors, std::span<const Place> places) {
  const auto all = file.bytes();
  const uint64_t start = (header_end + alignment - 1) / alignment * alignment;
  const uint64_t room = start < all.size() ? all.size() - start : 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [offset, size] = places[i];
    if (offset > room || size > room - offset) {
      throw failure(
          "{}: tensor '{}' ({} {}) needs bytes {} to {} of the tensor data, which has {}: the file is "
          "truncated or corrupt",
          file.path().string(), tensors[i].name, tensors[i].type->name, to_string(tensors[i].shape), offset,
          fmt::format("{} + {}", offset, size), room);
    }
    if (size) tensors[i].bytes = all.subspan(start + offset, size);
  }
  std::vector<const GgufTensor*> order;
  for (const auto& tensor : tensors) {
    if (!tensor.bytes.empty()) order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, [](const GgufTensor* tensor) { return tensor->bytes.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->bytes.data() < order[i - 1]->bytes.data() + order[i - 1]->bytes.size()) {
      throw failure("{}: tensors '{}' and '{}' overlap", file.path().string(), order[i - 1]->name,
                    order[i]->name);
    }
  }
}

std::string_view kind(const GgufValue& value) {
  constexpr std::string_view names[] = {"an integer",
                                        "an integer",
                                        "a float",
                                        "a bool",
                                        "a string",
                                        "an array of strings",
                                        "an array of integers",
                                        "an array of floats",
                                        "an array of bools",
                                        "an array of arrays"};
  static_assert(std::size(names) == std::variant_size_v<decltype(GgufValue::value)>);
  return names[value.value.index()];
}

const GgufValue* lookup(const GgufFile& file, const std::string& key) {
  const auto entry = file.metadata().find(key);
  return entry == file.metadata().end() ? nullptr : &entry->second;
}
std::runtime_error mismatch(const GgufFile& file, const std::string& key, std::string_view expected,
                            const GgufValue& found) {
  return failure("{}: metadata '{}': expected {}, found {}", file.file()->path().string(), key, expected,
                 kind(found));
}
template <typename T>
const T* get(const GgufFile& file, const std::string& key, std::string_view expected) {
  const auto* found = lookup(file, key);
  if (!found) return nullptr;
  if (const auto* value = std::get_if<T>(&found->value)) return value;
  throw mismatch(file, key, expected, *found);
}
template <typename T>
std::optional<T> copied(const T* value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  const auto row = std::ranges::find(kTypes, id, &GgmlType::id);
  return row == std::end(kTypes) ? nullptr : row;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  GgufFile result;
  result.file_ = MappedFile::open(path);
  Parser parser(*result.file_);
  auto& in = parser.in();
  result.version_ = read_version(in);
  const auto tensor_count = parser.count("the number of tensors", 24);
  const auto value_count = parser.count("the number of metadata entries", 13);
  for (uint64_t i = 0; i < value_count; ++i) {
    const auto begin = in.offset();
    auto key = parser.name("a metadata key");
    const auto type = in.read<uint32_t>(key);
    auto value = parser.value(type, key);
    if (!result.metadata_.emplace(key, std::move(value)).second)
      throw in.fail(fmt::format("metadata '{}' appears twice", key));
    const auto bytes = result.file_->bytes().subspan(begin, in.offset() - begin);
    result.entries_.push_back({{reinterpret_cast<const char*>(bytes.data()) + 8, key.size()}, bytes});
  }
  const auto alignment = result.alignment_ = alignment_of(result.metadata_, in);
  std::vector<Place> places;
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    auto& tensor = result.tensors_.emplace_back();
    places.push_back(read_tensor_info(parser, tensor, alignment));
    if (!names.insert(tensor.name).second)
      throw in.fail(fmt::format("tensor '{}' appears twice", tensor.name));
  }
  place_tensors(*result.file_, in.offset(), alignment, result.tensors_, places);
  return result;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto tensor = std::ranges::find(tensors_, name, &GgufTensor::name);
  return tensor == tensors_.end() ? nullptr : &*tensor;
}

std::optional<int64_t> GgufFile::integer(const std::string& key) const {
  const auto* found = lookup(*this, key);
  if (!found) return std::nullopt;
  if (const auto* value = std::get_if<int64_t>(&found->value)) return *value;
  if (const auto* value = std::get_if<uint64_t>(&found->value); value && std::in_range<int64_t>(*value)) {
    return static_cast<int64_t>(*value);
  }
  throw mismatch(*this, key, "an integer below 2^63", *found);
}
std::optional<double> GgufFile::number(const std::string& key) const {
  const auto* found = lookup(*this, key);
  if (!found) return std::nullopt;
  if (const auto* value = std::get_if<double>(&found->value)) return *value;
  if (const auto* value = std::get_if<int64_t>(&found->value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<uint64_t>(&found->value)) return static_cast<double>(*value);
  throw mismatch(*this, key, "a number", *found);
}
std::optional<bool> GgufFile::boolean(const std::string& key) const {
  return copied(get<bool>(*this, key, "a bool"));
}
std::optional<std::string> GgufFile::text(const std::string& key) const {
  return copied(get<std::string>(*this, key, "a string"));
}
const std::vector<std::string>* GgufFile::texts(const std::string& key) const {
  return get<std::vector<std::string>>(*this, key, "an array of strings");
}
const std::vector<int64_t>* GgufFile::integers(const std::string& key) const {
  return get<std::vector<int64_t>>(*this, key, "an array of integers");
}
const std::vector<double>* GgufFile::numbers(const std::string& key) const {
  return get<std::vector<double>>(*this, key, "an array of floats");
}

}  // namespace oscar
