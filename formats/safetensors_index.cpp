#include "formats/safetensors_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/atomic_write.h"
#include "formats/error.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using WeightMap = std::map<std::string, std::string>;  // tensor -> file

constexpr size_t kMaxIndex = size_t{256} << 20;
constexpr size_t kShown = 8;  // names in a message

std::string names(const std::vector<std::string>& list) {
  std::string text = fmt::format(
      "{}",
      fmt::join(list.begin(), list.begin() + static_cast<ptrdiff_t>(std::min(list.size(), kShown)), ", "));
  return list.size() > kShown ? fmt::format("{} and {} more", text, list.size() - kShown) : text;
}

WeightMap read_index(const fs::path& path) {
  const auto where = path.string();
  const auto text = read_text(path, kMaxIndex);
  std::set<std::string> seen;
  bool in_map = false;
  // The JSON library keeps the last of repeated keys without a word.
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (depth > 8) throw failure("{}: nested deeper than an index is", where);
    if (event != nlohmann::json::parse_event_t::key) return true;
    const auto key = parsed.get<std::string>();
    if (depth == 1) in_map = key == "weight_map";
    if (depth == 2 && in_map && !seen.insert(key).second)
      throw failure("{}: weight_map: '{}' appears twice", where, key);
    return true;
  };
  WeightMap map;
  try {
    const auto index = nlohmann::json::parse(text, check);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
      throw failure("{}: expected an object with 'weight_map'", where);
    for (const auto& [name, file] : index["weight_map"].items()) {
      if (!file.is_string()) throw failure("{}: weight_map: '{}' is not a file name", where, name);
      map[name] = file.get<std::string>();
      // A name, not a path: an index must not reach out of its directory.
      if (fs::path(map[name]).filename() != map[name] || !map[name].ends_with(".safetensors"))
        throw failure("{}: weight_map: '{}': '{}' is not the name of a .safetensors file", where, name,
                      map[name]);
    }
  } catch (const nlohmann::json::exception& error) {
    throw failure("{}: {}", where, error.what());
  }
  if (map.empty()) throw failure("{}: weight_map is empty", where);
  return map;
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

void check_index(const ShardedSafeTensors& all, const WeightMap& map, const fs::path& directory) {
  std::vector<std::string> missing, surplus;
  for (const auto& [name, file] : map) {
    const auto shard = std::ranges::find(all.shards, file, &SafeTensorsShard::file);
    if (!shard->content.tensors.contains(name)) missing.push_back(fmt::format("{} ({})", name, file));
  }
  for (const auto& shard : all.shards) {
    for (const auto& entry : shard.content.tensors) {
      const auto known = map.find(entry.first);
      if (known == map.end() || known->second != shard.file)
        surplus.push_back(fmt::format("{} ({})", entry.first, shard.file));
    }
  }
  if (missing.empty() && surplus.empty()) return;
  std::string text;
  if (!missing.empty()) text += fmt::format("; missing in their files: {}", names(missing));
  if (!surplus.empty()) text += fmt::format("; not in the index: {}", names(surplus));
  throw failure("{}: the index and its files do not agree{}", (directory / kSafeTensorsIndex).string(), text);
}

void check_once(const ShardedSafeTensors& all, const fs::path& directory) {
  WeightMap seen;
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
  const auto map = read_index(index);
  std::set<std::string> files;
  for (const auto& entry : map) files.insert(entry.second);
  std::vector<std::string> absent;
  for (const auto& file : files) {
    if (!fs::exists(directory / file)) absent.push_back(file);
  }
  if (!absent.empty())
    throw failure("{}: names files that are not there: {}: the download is incomplete", index.string(),
                  names(absent));
  for (const auto& file : files) all.shards.push_back({file, read_safetensors(directory / file)});
  check_index(all, map, directory);
  return all;
}

void write_sharded_safetensors(const fs::path& directory, const ShardedSafeTensors& content) {
  make_directory(directory);
  uint64_t total = 0;
  auto map = nlohmann::ordered_json::object();
  WeightMap sorted;
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
