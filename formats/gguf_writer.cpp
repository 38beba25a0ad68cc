#include "formats/gguf_writer.h"

#include <algorithm>
#include <set>

#include "formats/atomic_write.h"
#include "formats/error.h"

namespace oscar {
namespace {

constexpr uint32_t kU32 = 4, kBool = 7, kString = 8, kArray = 9, kI64 = 11, kF64 = 12;

class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& put(std::string_view text) {
    put(uint64_t{text.size()});
    text_ += text;
    return *this;
  }
  Bytes& raw(std::span<const std::byte> bytes) {
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return *this;
  }
  void align(uint64_t alignment) { text_.resize((text_.size() + alignment - 1) / alignment * alignment); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }

 private:
  std::string text_;
};

void put_value(Bytes& out, const std::string& key, const GgufValue& value) {
  out.put(std::string_view(key));
  const auto& v = value.value;
  if (const auto* integer = std::get_if<int64_t>(&v)) {
    if (std::in_range<uint32_t>(*integer)) {
      out.put(kU32).put(static_cast<uint32_t>(*integer));
    } else {
      out.put(kI64).put(*integer);
    }
  } else if (const auto* number = std::get_if<double>(&v)) {
    out.put(kF64).put(*number);
  } else if (const auto* flag = std::get_if<bool>(&v)) {
    out.put(kBool).put(static_cast<uint8_t>(*flag));
  } else if (const auto* text = std::get_if<std::string>(&v)) {
    out.put(kString).put(std::string_view(*text));
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&v)) {
    out.put(kArray).put(kString).put(uint64_t{texts->size()});
    for (const auto& each : *texts) out.put(std::string_view(each));
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&v)) {
    out.put(kArray).put(kI64).put(uint64_t{integers->size()});
    for (const int64_t each : *integers) out.put(each);
  } else {
    throw invalid("GGUF metadata '{}': values of this kind are not written", key);
  }
}

const GgmlType& type_of(const std::string& name, DType dtype) {
  static constexpr std::pair<DType, uint32_t> kIds[] = {{DType::F32, 0},  {DType::F16, 1},  {DType::I8, 24},
                                                        {DType::I16, 25}, {DType::I32, 26}, {DType::I64, 27},
                                                        {DType::F64, 28}, {DType::BF16, 30}};
  const auto row = std::ranges::find(kIds, dtype, &std::pair<DType, uint32_t>::first);
  if (row == std::end(kIds)) throw invalid("GGUF tensor '{}': no type for {}", name, info(dtype).name);
  return *find_ggml_type(row->second);
}

}  // namespace

void write_gguf(const std::filesystem::path& path, const GgufFile& base,
                const std::function<bool(std::string_view)>& drop, const GgufAddition& addition) {
  std::vector<GgufTensor> tensors;
  for (const auto& tensor : base.tensors()) {
    if (!drop(tensor.name)) tensors.push_back(tensor);
  }
  for (const auto& [name, tensor] : addition.tensors) {
    check_size(tensor);
    tensors.push_back({name, &type_of(name, tensor.dtype), tensor.shape, tensor.bytes});
  }
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw invalid("{}: tensor '{}' is there already", base.file()->path().string(), tensor.name);
    if (tensor.shape.size() > 4) throw invalid("GGUF tensor '{}': at most 4 dimensions", tensor.name);
  }

  Bytes entries;
  uint64_t count = 0;
  std::set<std::string_view> keys;
  for (const auto& entry : base.entries()) {
    if (drop(entry.key)) continue;
    keys.insert(entry.key);
    entries.raw(entry.bytes);
    ++count;
  }
  for (const auto& [key, value] : addition.metadata) {
    if (!keys.insert(key).second)
      throw invalid("{}: metadata '{}' is there already", base.file()->path().string(), key);
    put_value(entries, key, value);
    ++count;
  }

  const uint64_t alignment = base.alignment();
  const auto padded = [&](uint64_t n) { return (n + alignment - 1) / alignment * alignment; };
  Bytes header;
  header.put(uint32_t{0x46554747})
      .put(base.version())
      .put(uint64_t{tensors.size()})
      .put(count)
      .raw(entries.bytes());
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    header.put(std::string_view(tensor.name)).put(static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent)
      header.put(static_cast<uint64_t>(*extent));
    header.put(tensor.type->id).put(offset);
    offset = padded(offset + tensor.bytes.size());
  }
  header.align(alignment);
  const std::vector<std::byte> zeros(alignment);
  FileParts parts{header.bytes()};
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.bytes);
    parts.push_back(std::span(zeros).first(padded(tensor.bytes.size()) - tensor.bytes.size()));
  }
  write_file(path, parts);
}

}  // namespace oscar
