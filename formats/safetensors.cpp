#include "formats/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "formats/atomic_write.h"
#include "formats/json_reader.h"
#include "formats/mapped_file.h"

namespace oscar {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // bytes, the format's own limit
constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kNode = 5 * sizeof(void*);  // of a map, beyond key and value

struct Place {
  uint64_t begin, end;  // from the start of the data
  size_t at;            // of the tensor's key in the file
  std::pair<const std::string, Tensor>* entry;
};

// The value of a tensor's key: dtype, shape and the place of its bytes.
void read_entry(JsonReader& json, Place& place, const ByteReader& in, Budget& budget) {
  const auto& name = place.entry->first;
  auto& tensor = place.entry->second;
  const auto refuse = [&](std::string_view why) {
    return json.fail_at(place.at, fmt::format("tensor '{}': {}", shown(name), why));
  };
  constexpr std::string_view kExpected = "expected dtype, shape and two data_offsets";
  if (json.peek() != '{') throw refuse(kExpected);
  const DTypeInfo* row = nullptr;
  bool has_shape = false;
  size_t ends = 0;  // offsets read
  json.object([&](const std::string& field, size_t) {
    if (field == "dtype" && !row) {
      if (json.peek() != '"') throw refuse(kExpected);
      const auto dtype = json.string("a dtype");
      row = find_dtype(dtype);
      if (!row) throw refuse(fmt::format("unknown dtype '{}'", shown(dtype)));
    } else if (field == "shape" && !has_shape && json.peek() == '[') {
      has_shape = true;
      json.array([&] {
        const auto at = json.offset();
        const auto extent = json.natural("an extent");
        if (!std::in_range<int64_t>(extent))
          throw json.fail_at(at, fmt::format("an extent of {} is above 2^63 - 1", extent));
        budget.grow(tensor.shape, 1, in, "a shape");
        tensor.shape.push_back(static_cast<int64_t>(extent));
      });
    } else if (field == "data_offsets" && !ends && json.peek() == '[') {
      json.array([&] {
        if (ends == 2) throw refuse(kExpected);
        (ends++ ? place.end : place.begin) = json.natural("an offset");
      });
    } else {
      throw refuse(fmt::format("'{}' is unknown, repeated or of another type: {}", shown(field), kExpected));
    }
  });
  if (!row || !has_shape || ends != 2) throw refuse(kExpected);
  tensor.dtype = row->dtype;
  const auto size = byte_count(tensor.shape, row->dtype);
  if (!size || place.end < place.begin || place.end - place.begin != static_cast<uint64_t>(*size)) {
    const auto extents = tensor.shape.size() <= 16 ? to_string(tensor.shape)
                                                   : fmt::format("of {} extents", tensor.shape.size());
    throw refuse(fmt::format("{} {} does not have the {} bytes of its offsets {} to {}", row->name, extents,
                             place.end - place.begin, place.begin, place.end));
  }
}

// The tensors, in the order of their offsets, must be the whole of the data: no overlap, no gap, nothing
// after them.
void check_cover(std::vector<Place>& places, uint64_t data, const ByteReader& in) {
  std::ranges::sort(places, {},
                    [](const Place& place) { return std::tuple(place.begin, place.end, place.at); });
  uint64_t at = 0;
  for (const auto& place : places) {
    if (place.begin != at) {
      throw in.fail_at(place.at, fmt::format("tensor '{}' begins at {}, the one before it ends at {}: {}",
                                             shown(place.entry->first), place.begin, at,
                                             place.begin < at ? "they overlap" : "there is a gap"));
    }
    at = place.end;
  }
  if (at != data) {
    throw in.fail(fmt::format(
        "the tensors need {} bytes of data, the file has {}: it is truncated or has trailing bytes", at,
        data));
  }
}

void read_metadata(JsonReader& json, SafeTensors& content, size_t at, const ByteReader& in, Budget& budget) {
  if (json.peek() != '{') throw json.fail_at(at, "__metadata__ is not an object");
  json.object([&](std::string key, size_t field) {
    if (json.peek() != '"')
      throw json.fail_at(field, fmt::format("__metadata__ '{}' is not a string", shown(key)));
    budget.take(kNode + sizeof(*content.metadata.begin()), in, "the header");
    const auto [entry, added] = content.metadata.try_emplace(std::move(key));
    if (!added) throw json.fail_at(field, fmt::format("header: key '{}' appears twice", shown(entry->first)));
    entry->second = json.string("a text");
  });
}

}  // namespace

SafeTensors read_safetensors(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto name = path.string();
  ByteReader in(file->bytes(), name);
  const auto length = in.read<uint64_t>("the header length");
  if (length > kMaxHeader || length > in.remaining()) {
    throw in.fail(
        fmt::format("a header of {} bytes, {} are left: the file is truncated or is not safetensors", length,
                    in.remaining()));
  }
  const auto header = in;
  const auto text = in.text(length, "the header");
  if (!text.starts_with('{')) throw header.fail("the header is not a JSON object: not a safetensors file");
  const auto data = file->bytes().subspan(in.offset());

  SafeTensors content;
  auto budget = Budget::of_file(file->bytes().size());
  std::vector<Place> places;
  bool has_metadata = false;
  JsonReader json(text, header, budget);
  json.object([&](std::string key, size_t at) {
    if (key == kMetadata) {
      if (std::exchange(has_metadata, true)) throw json.fail_at(at, "header: __metadata__ appears twice");
      return read_metadata(json, content, at, header, budget);
    }
    budget.take(kNode + sizeof(*content.tensors.begin()), header, "the header");
    budget.grow(places, 1, header, "the header");
    const auto [entry, added] = content.tensors.try_emplace(std::move(key));
    if (!added) throw json.fail_at(at, fmt::format("header: key '{}' appears twice", shown(entry->first)));
    read_entry(json, places.emplace_back(Place{0, 0, at, &*entry}), header, budget);
  });
  json.finish();
  check_cover(places, data.size(), in);
  for (const auto& [begin, end, at, entry] : places) {
    entry->second.bytes = data.subspan(begin, end - begin);
    entry->second.owner = file;
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
