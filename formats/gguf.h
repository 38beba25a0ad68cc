// GGUF v2 and v3, read: every metadata type, and the position and type of every tensor. Bytes only;
// dequantisation is libdump's.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "formats/mapped_file.h"
#include "formats/tensor.h"

namespace oscar {

// ggml tensor types by their id in the file. One table gives name, elements per block and bytes per block.
struct GgmlType {
  uint32_t id;
  std::string_view name;  // "Q4_1"
  int64_t block;          // elements
  size_t bytes;           // per block
};
const GgmlType* find_ggml_type(uint32_t id);  // nullptr for an id that is not in the table

struct GgufValue;
using GgufArray = std::vector<GgufValue>;
struct GgufValue {
  // Integers of every width as int64_t or (uint64 only) uint64_t, float32 and float64 as double.
  // Arrays of strings, integers and floats are kept flat: a vocabulary has 150,000 entries.
  std::variant<int64_t, uint64_t, double, bool, std::string, std::vector<std::string>, std::vector<int64_t>,
               std::vector<double>, std::vector<bool>, GgufArray>
      value;
};

struct GgufTensor {
  std::string name;
  const GgmlType* type;              // never null: unknown ids are refused when the file is opened, by tensor
  Shape shape;                       // row-major: the reverse of the file's ne[], so a weight is [out, in]
  std::span<const std::byte> bytes;  // inside the map, exact size
};

// A metadata entry as it stands in the file: key, type and value.
struct GgufEntry {
  std::string_view key;
  std::span<const std::byte> bytes;
};

class GgufFile {
 public:
  static GgufFile open(const std::filesystem::path& path);

  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const std::vector<GgufEntry>& entries() const { return entries_; }  // in file order, inside the map
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }  // of the tensor data, bytes
  const GgufTensor* find(std::string_view name) const;
  const std::shared_ptr<const MappedFile>& file() const { return file_; }

  // Metadata by key: absent is nullopt, another type is std::runtime_error with key, expected and found.
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  const std::vector<std::string>* texts(const std::string& key) const;
  const std::vector<int64_t>* integers(const std::string& key) const;
  const std::vector<double>* numbers(const std::string& key) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  uint32_t version_ = 3;
  uint64_t alignment_ = 32;
};

}  // namespace oscar
