#include "formats/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/atomic_write.h"
#include "formats/bytes.h"
#include "formats/mapped_file.h"

namespace oscar {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // bytes, the format's own limit
constexpr std::string_view kMetadata = "__metadata__";

// The JSON library keeps the last of repeated keys without a word, and recurses as deep as the text tells it
// to.
json parse_header(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > 3) throw failure("{}: header: nested deeper than the format has it", file);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw failure("{}: header: key '{}' appears twice", file, parsed.get<std::string>());
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw failure("{}: header: {}", file, error.what());
  }
}

struct Entry {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin, end;  // from the start of the data
};

uint64_t natural(const json& value, const std::string& where) {
  if (!value.is_number_unsigned())
    throw failure("{}: expected a non-negative integer, found {}", where, value.dump());
  return value.get<uint64_t>();
}

Entry parse_entry(const std::string& name, const json& value, const std::string& file) {
  const auto where = fmt::format("{}: tensor '{}'", file, name);
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !value["dtype"].is_string() || !value["shape"].is_array() ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    throw failure("{}: expected dtype, shape and two data_offsets, found {}", where,
                  value.dump().substr(0, 200));
  }
  Entry entry{name,
              DType::F32,
              {},
              natural(value["data_offsets"][0], where),
              natural(value["data_offsets"][1], where)};
  const auto dtype = value["dtype"].get<std::string>();
  const auto* row = find_dtype(dtype);
  if (!row) throw failure("{}: unknown dtype '{}'", where, dtype);
  entry.dtype = row->dtype;
  for (const auto& extent : value["shape"]) {
    const auto n = natural(extent, where);
    if (!std::in_range<int64_t>(n)) throw failure("{}: extent {} is above 2^63 - 1", where, n);
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  const auto size = byte_count(entry.shape, row->dtype);
  if (!size || entry.end < entry.begin || entry.end - entry.begin != static_cast<uint64_t>(*size)) {
    throw failure("{}: {} {} does not have the {} bytes of its offsets {} to {}", where, dtype,
                  to_string(entry.shape), entry.end - entry.begin, entry.begin, entry.end);
  }
  return entry;
}

// The tensors, in the order of their offsets, must be the whole of the data: no overlap, no gap, nothing
// after them.
void check_cover(std::vector<Entry>& entries, uint64_t data, const std::string& file) {
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
  uint64_t at = 0;
  for (const auto& entry : entries) {
    if (entry.begin != at) {
      throw failure("{}: tensor '{}' begins at {}, the one before it ends at {}: {}", file, entry.name,
                    entry.begin, at, entry.begin < at ? "they overlap" : "there is a gap");
    }
    at = entry.end;
  }
  if (at != data) {
    throw failure(
        "{}: the tensors need {} bytes of data, the file has {}: it is truncated or has trailing bytes", file,
        at, data);
  }
}

}  // namespace

SafeTensors read_safetensors(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto name = path.string();
  ByteReader in(file->bytes(), name);
  const auto length = in.read<uint64_t>("the header length");
  if (length > kMaxHeader || length > in.remaining()) {
    throw failure("{}: a header of {} bytes, {} are left: the file is truncated or is not safetensors", name,
                  length, in.remaining());
  }
  const auto text = in.text(length, "the header");
  if (!text.starts_with('{')) throw in.fail("the header is not a JSON object: not a safetensors file");
  const auto header = parse_header(text, name);
  const auto data = in.take(in.remaining(), "the data");

  SafeTensors content;
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.items()) {
    if (key != kMetadata) {
      entries.push_back(parse_entry(key, value, name));
      continue;
    }
    if (!value.is_object()) throw failure("{}: __metadata__ is not an object", name);
    for (const auto& [field, entry] : value.items()) {
      if (!entry.is_string()) throw failure("{}: __metadata__ '{}' is not a string", name, field);
      content.metadata[field] = entry.get<std::string>();
    }
  }
  check_cover(entries, data.size(), name);
  for (auto& entry : entries) {
    content.tensors[entry.name] = {entry.dtype, std::move(entry.shape),
                                   data.subspan(entry.begin, entry.end - entry.begin), file};
  }
  return content;
}

void write_safetensors(const std::filesystem::path& path, const SafeTensors& content) {
  json header = json::object();
  if (!content.metadata.empty()) header[kMetadata] = content.metadata;
  std::vector<const std::pair<const std::string, Tensor>*> order;
  for (const auto& entry : content.tensors) order.push_back(&entry);
  std::ranges::stable_sort(order, std::greater(),
                           [](const auto* entry) { return info(entry->second.dtype).bits; });
  uint64_t at = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    check_size(tensor);
    if (name == kMetadata) throw invalid("{}: a tensor cannot be called {}", path.string(), kMetadata);
    header[name] = {{"dtype", info(tensor.dtype).name},
                    {"shape", tensor.shape},
                    {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw invalid("{}: a name or a metadata text is not UTF-8: {}", path.string(), error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader)
    throw invalid("{}: the header has {} bytes, at most {} are allowed", path.string(), text.size(),
                  kMaxHeader);
  const uint64_t length = text.size();
  FileParts parts{std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(text))};
  for (const auto* entry : order) parts.push_back(entry->second.bytes);
  write_file(path, parts);
}

}  // namespace oscar
