#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "formats/budget.h"

namespace oscar {

namespace {

// ggml's type ids. Numbers left out were removed from it (4, 5, 31-33, 36-38).
// 42 is Q2_0 in blocks of 64 elements and 18 bytes; one fork has a Q2_0 of 32 and 12 under the same number.
constexpr uint32_t kQ2_0 = 42, kLastType = 42;
constexpr uint64_t kForkBytes = 24;  // of the fork, for 64 elements
constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {kQ2_0, "Q2_0", 64, 18},
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
  explicit Parser(const MappedFile& file)
      : in_(file.bytes(), file.path().string()), budget_(Budget::of_file(file.bytes().size())) {}

  ByteReader& in() { return in_; }
  void take(uint64_t bytes) { budget_.take(bytes, in_, "the metadata"); }

  uint64_t count(std::string_view what, size_t least) {
    const auto n = in_.read<uint64_t>(what);
    if (n > in_.remaining() / least) {
      throw in_.fail(fmt::format("{} is {}, but {} bytes are left: the file is truncated or corrupt", what, n,
                                 in_.remaining()));
    }
    return n;
  }
  std::string string(std::string_view what) {
    const auto text = in_.text(in_.read<uint64_t>(what), what);
    budget_.take_text(text.size(), in_, what);
    return std::string(text);
  }
  std::string name(std::string_view what) {
    const auto length = in_.read<uint64_t>(what);
    if (length > kMaxName)
      throw in_.fail(fmt::format("{} has {} bytes, at most {} are allowed", what, length, kMaxName));
    const auto text = in_.text(length, what);
    budget_.take_text(text.size(), in_, what);
    return std::string(text);
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
    take(n * sizeof(T));  // of a vector of bools that is more than enough
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
  Budget budget_;
};

uint32_t read_version(ByteReader& in) {
  if (in.text(4, "the GGUF magic") != "GGUF") throw in.fail_at(0, "is not a GGUF file: no magic number");
  const auto version = in.read<uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  if (version == 1) throw in.fail("GGUF version 1 is not supported: convert the file to version 3");
  if ((version & 0xffff) == 0) throw in.fail("the file is big-endian GGUF: convert it to little-endian");
  throw in.fail(fmt::format("GGUF version {} is not supported: expected 2 or 3", version));
}

uint64_t alignment_of(const GgufFile& file, const ByteReader& in) {
  const auto entry = std::ranges::find(file.entries(), "general.alignment", &GgufEntry::key);
  if (entry == file.entries().end()) return 32;
  const auto* value = std::get_if<int64_t>(&file.metadata().at("general.alignment").value);
  if (!value || *value <= 0 || !std::has_single_bit(static_cast<uint64_t>(*value))) {
    const auto at = entry->bytes.data() - file.file()->bytes().data();
    throw in.fail_at(static_cast<size_t>(at), "'general.alignment' is not a power of two");
  }
  return static_cast<uint64_t>(*value);
}

struct Place {
  uint64_t offset, size;  // from the start of the tensor data
  size_t at;              // of what tells it
};

// Name, extents, type and offset of one tensor, as the file tells them.
Place read_tensor_info(Parser& parser, GgufTensor& tensor, uint64_t alignment) {
  auto& in = parser.in();
  const auto at = in.offset();
  tensor.name = parser.name("a tensor name");
  const auto refuse = [&](std::string_view why) {
    return in.fail_at(at, fmt::format("tensor '{}': {}", shown(tensor.name), why));
  };
  const auto dims = in.read<uint32_t>("the number of dimensions");
  if (dims > kMaxDims) throw refuse(fmt::format("{} dimensions, at most {} are allowed", dims, kMaxDims));
  parser.take(dims * sizeof(int64_t));
  tensor.shape.resize(dims);
  for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) {
    *extent = in.read<int64_t>("an extent");
    if (*extent < 0) throw refuse("an extent is above 2^63 - 1");
  }
  const auto id = in.read<uint32_t>("the type");
  tensor.type = find_ggml_type(id);
  if (!tensor.type) {
    throw refuse(fmt::format(
        "unknown ggml type {}: {}", id,
        id > kLastType
            ? "numbers from 43 on are private to single forks, each with blocks of its own: convert the file "
              "with the program that wrote it"
            : "it was removed from ggml: convert the file with a newer llama.cpp"));
  }
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
  return {offset, static_cast<uint64_t>(*size), at};
}

void place_tensors(const ByteReader& in, std::span<const std::byte> all, uint64_t alignment,
                   std::span<GgufTensor> tensors, std::span<const Place> places) {
  const uint64_t start = (in.offset() + alignment - 1) / alignment * alignment;
  const uint64_t room = start < all.size() ? all.size() - start : 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [offset, size, at] = places[i];
    if (offset > room || size > room - offset) {
      throw in.fail_at(
          at,
          fmt::format("tensor '{}' ({} {}) needs bytes {} to {} + {} of the tensor data, which has {}: the "
                      "file is truncated or corrupt",
                      shown(tensors[i].name), tensors[i].type->name, to_string(tensors[i].shape), offset,
                      offset, size, room));
    }
    if (size) tensors[i].bytes = all.subspan(start + offset, size);
  }
}

// No tensor has the name or the bytes of another, nor blocks that only one fork has. `data`: bytes of tensor
// data.
void check_apart(const ByteReader& in, uint64_t data, uint64_t alignment, std::span<const GgufTensor> tensors,
                 std::span<const Place> places) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {},
                    [&](size_t i) { return std::pair<std::string_view, size_t>(tensors[i].name, i); });
  const auto same = [&](size_t a, size_t b) { return tensors[a].name == tensors[b].name; };
  if (const auto twice = std::ranges::adjacent_find(order, same); twice != order.end()) {
    const auto second = twice[1];
    throw in.fail_at(places[second].at,
                     fmt::format("tensor '{}' appears twice", shown(tensors[second].name)));
  }
  std::erase_if(order, [&](size_t i) { return places[i].size == 0; });
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(places[i].offset, i); });
  const auto into = [&](size_t a, size_t b) { return places[b].offset - places[a].offset < places[a].size; };
  if (const auto first = std::ranges::adjacent_find(order, into); first != order.end()) {
    throw in.fail_at(places[first[1]].at,
                     fmt::format("tensors '{}' and '{}' overlap", shown(tensors[first[0]].name),
                                 shown(tensors[first[1]].name)));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [offset, size, at] = places[order[i]];
    if (tensors[order[i]].type->id != kQ2_0) continue;
    // The blocks of the fork need more bytes, and the next tensor, or the end, is where they say.
    const uint64_t room = (i + 1 < order.size() ? places[order[i + 1]].offset : data) - offset;
    const auto fills = [&](uint64_t bytes) { return room >= bytes && room - bytes < alignment; };
    if (fills(size / 18 * kForkBytes) && !fills(size))
      throw in.fail_at(at, fmt::format("tensor '{}': type 42 in blocks of 32 elements and 12 bytes, a "
                                       "private Q2_0 of one fork: convert the "
                                       "file with the program that wrote it",
                                       shown(tensors[order[i]].name)));
  }
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
  // Nodes of the map, and the key of each.
  constexpr size_t kNode = sizeof(decltype(result.metadata_)::value_type) + 4 * sizeof(void*);
  parser.take(value_count * (sizeof(GgufEntry) + kNode) +
              tensor_count * (sizeof(GgufTensor) + sizeof(Place) + sizeof(size_t)));
  result.entries_.reserve(value_count);
  for (uint64_t i = 0; i < value_count; ++i) {
    const auto begin = in.offset();
    auto key = parser.name("a metadata key");
    const auto type = in.read<uint32_t>("a value type");
    auto value = parser.value(type, shown(key));
    const auto bytes = result.file_->bytes().subspan(begin, in.offset() - begin);
    result.entries_.push_back({{reinterpret_cast<const char*>(bytes.data()) + 8, key.size()}, bytes});
    if (!result.metadata_.emplace(std::move(key), std::move(value)).second)
      throw in.fail_at(begin, fmt::format("metadata '{}' appears twice", shown(result.entries_.back().key)));
  }
  const auto alignment = result.alignment_ = alignment_of(result, in);
  std::vector<Place> places;
  places.reserve(tensor_count);
  result.tensors_.reserve(tensor_count);
  for (uint64_t i = 0; i < tensor_count; ++i)
    places.push_back(read_tensor_info(parser, result.tensors_.emplace_back(), alignment));
  place_tensors(in, result.file_->bytes(), alignment, result.tensors_, places);
  const uint64_t start = (in.offset() + alignment - 1) / alignment * alignment,
                 all = result.file_->bytes().size();
  check_apart(in, start < all ? all - start : 0, alignment, result.tensors_, places);
  return result;
}

}  // namespace oscar
