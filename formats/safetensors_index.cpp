#include "formats/safetensors_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/json_reader.h"
#include "formats/mapped_file.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
struct Listed {
  std::string file;
  size_t at;  // of the tensor's key in the index
};
using WeightMap = std::map<std::string, Listed>;  // by tensor

struct Index {
  ByteReader in;  // stands at weight_map; for messages alone, its bytes are gone
  WeightMap map;
};

constexpr size_t kMaxIndex = size_t{256} << 20;
constexpr size_t kShown = 8;  // names in a message

// Of any number of names the first few, and how many more.
struct Names {
  std::vector<std::string> first;
  size_t count = 0;
  void add(std::string_view name) {
    if (count++ < kShown) first.push_back(shown(name));
  }
  void add(std::string_view name, std::string_view file) {
    if (count++ < kShown) first.push_back(fmt::format("{} ({})", shown(name), shown(file)));
  }
  std::string text() const {
    const auto list = fmt::format("{}", fmt::join(first, ", "));
    return count > kShown ? fmt::format("{} and {} more", list, count - kShown) : list;
  }
};

// A name, not a path: an index must not reach out of its directory.
bool is_file_name(const std::string& name) {
  return name.find_first_of(std::string_view("/\0", 2)) == name.npos && name.size() < 256 &&
         name.ends_with(".safetensors");
}

Index read_index(const fs::path& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  Index index{ByteReader(bytes, path.string()), {}};
  auto& in = index.in;
  auto& map = index.map;
  if (bytes.size() > kMaxIndex)
    throw in.fail(fmt::format("an index of {} bytes: at most 256 MiB", bytes.size()));
  auto budget = Budget::of_file(bytes.size());
  JsonReader json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, in, budget);
  constexpr std::string_view kExpected = "expected an object with 'weight_map'";
  if (json.peek() != '{') throw json.fail(kExpected);
  bool found = false;
  json.object([&](const std::string& key, size_t at) {
    if (key != "weight_map") return json.skip();
    if (json.peek() != '{' || std::exchange(found, true))
      throw json.fail_at(at, "'weight_map' appears twice or is not an object");
    in.take(at, "weight_map");
    json.object([&](std::string name, size_t entry_at) {
      const auto refuse = [&](std::string_view why) {
        return json.fail_at(entry_at, fmt::format("weight_map: '{}' {}", shown(name), why));
      };
      if (json.peek() != '"') throw refuse("is not a file name");
      constexpr size_t kNode = sizeof(WeightMap::value_type) + 5 * sizeof(void*);
      budget.take(kNode, in, "weight_map");
      Listed listed{json.string("a file name"), entry_at};
      if (!is_file_name(listed.file))
        throw refuse(
            fmt::format("is in '{}', which is not the name of a .safetensors file", shown(listed.file)));
      if (!map.try_emplace(name, std::move(listed)).second) throw refuse("appears twice");
      budget.take_text(name.size(), in, "weight_map");
    });
  });
  json.finish();
  if (!found) throw in.fail(kExpected);
  if (map.empty()) throw in.fail("weight_map is empty: there is nothing to read");
  return index;
}

std::vector<std::string> files_of(const fs::path& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().filename().string());
  }
  if (error)
    throw invalid("{}: expected a directory with .safetensors files: {}", directory.string(),
                  error.message());
  if (files.empty()) throw invalid("{}: has no .safetensors file", directory.string());
  std::ranges::sort(files);
  return files;
}

void check_index(const ShardedSafeTensors& all, const Index& index) {
  Names missing, surplus;
  auto at = index.in.offset();
  for (const auto& [name, listed] : index.map) {
    const auto shard = std::ranges::find(all.shards, listed.file, &SafeTensorsShard::file);
    if (shard->content.tensors.contains(name)) continue;
    if (!missing.count) at = listed.at;
    missing.add(name, listed.file);
  }
  for (const auto& shard : all.shards) {
    for (const auto& entry : shard.content.tensors) {
      const auto known = index.map.find(entry.first);
      if (known == index.map.end() || known->second.file != shard.file) surplus.add(entry.first, shard.file);
    }
  }
  if (!missing.count && !surplus.count) return;
  std::string text;
  if (missing.count) text += "; missing in their files: " + missing.text();
  if (surplus.count) text += "; not in the index: " + surplus.text();
  throw index.in.fail_at(at, "the index and its files do not agree" + text);
}

void check_once(const ShardedSafeTensors& all, const fs::path& directory) {
  std::map<std::string_view, std::string_view> seen;
  for (const auto& shard : all.shards) {
    for (const auto& entry : shard.content.tensors) {
      const auto [known, added] = seen.emplace(entry.first, shard.file);
      if (!added)
        throw failure("{}: tensor '{}' is in {} and in {}: keep one of them, or the index",
                      directory.string(), entry.first, known->second, shard.file);
    }
  }
}

}  // namespace

const Tensor* ShardedSafeTensors::find(const std::string& name) const {
  for (const auto& shard : shards) {
    if (const auto found = shard.content.tensors.find(name); found != shard.content.tensors.end())
      return &found->second;
  }
  return nullptr;
}

ShardedSafeTensors read_sharded_safetensors(const fs::path& directory) {
  ShardedSafeTensors all;
  const auto index = directory / kSafeTensorsIndex;
  all.indexed = fs::exists(index);
  if (!all.indexed) {
    for (const auto& file : files_of(directory))
      all.shards.push_back({file, read_safetensors(directory / file)});
    check_once(all, directory);
    return all;
  }
  const auto listed = read_index(index);
  std::map<std::string_view, size_t> files;  // and where each is named
  for (const auto& entry : listed.map) files.emplace(entry.second.file, entry.second.at);
  Names absent;
  auto at = listed.in.offset();
  for (const auto& [file, named] : files) {
    std::error_code error;
    if (fs::is_regular_file(directory / file, error)) continue;
    if (!absent.count) at = named;
    absent.add(file);
  }
  if (absent.count) {
    throw listed.in.fail_at(
        at, fmt::format("names files that are not there: {}: the download is incomplete", absent.text()));
  }
  for (const auto& entry : files) {
    const std::string file(entry.first);
    all.shards.push_back({file, read_safetensors(directory / file)});
  }
  check_index(all, listed);
  return all;
}

void write_sharded_safetensors(const fs::path& directory, const ShardedSafeTensors& content) {
  make_directory(directory);
  uint64_t total = 0;
  auto map = nlohmann::ordered_json::object();
  std::map<std::string, std::string> sorted;
  for (const auto& shard : content.shards) {
    write_safetensors(directory / shard.file, shard.content);
    for (const auto& [name, tensor] : shard.content.tensors) {
      sorted[name] = shard.file;
      total += tensor.bytes.size();
    }
  }
  if (!content.indexed) return;
  for (const auto& [name, file] : sorted) map[name] = file;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file(directory / kSafeTensorsIndex, index.dump(2) + "\n");
}

void write_sharded_safetensors(const fs::path& directory, const SafeTensors& content, uint64_t limit) {
  ShardedSafeTensors all;
  uint64_t size = 0;
  for (const auto& [name, tensor] : content.tensors) {
    if (all.shards.empty() || (size + tensor.bytes.size() > limit && size > 0)) {
      all.shards.push_back({"", {{}, content.metadata}});
      size = 0;
    }
    all.shards.back().content.tensors.emplace(name, tensor);
    size += tensor.bytes.size();
  }
  if (all.shards.empty()) all.shards.push_back({"", {{}, content.metadata}});
  all.indexed = all.shards.size() > 1;
  for (size_t i = 0; i < all.shards.size(); ++i) {
    all.shards[i].file = all.indexed
                             ? fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, all.shards.size())
                             : "model.safetensors";
  }
  write_sharded_safetensors(directory, all);
}

}  // namespace oscar
