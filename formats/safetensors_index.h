// A checkpoint in many .safetensors: the files, and model.safetensors.index.json, which says where each
// tensor is.
#pragma once
#include "formats/safetensors.h"

namespace oscar {

inline constexpr const char* kSafeTensorsIndex = "model.safetensors.index.json";

struct SafeTensorsShard {
  std::string file;  // its name in the directory
  SafeTensors content;
};
struct ShardedSafeTensors {
  std::vector<SafeTensorsShard> shards;  // by name
  bool indexed = false;
  const Tensor* find(const std::string& name) const;  // nullptr where no shard has it
};

// Every shard is mapped, its header read. With an index, its files are the shards and each has exactly the
// tensors that the index gives it: others, missing ones and missing files are std::runtime_error with all
// their names. Without one, every .safetensors of the directory; a tensor in two of them is
// std::runtime_error. No such file at all is std::invalid_argument.
ShardedSafeTensors read_sharded_safetensors(const std::filesystem::path& directory);

// "model-00001-of-00003.safetensors", … with at most `limit` bytes of tensors each (one tensor more than that
// is alone), tensors in name order, then the index; a single shard is "model.safetensors" and has none.
// Metadata goes into every shard. Each file is atomic, the index comes last.
void write_sharded_safetensors(const std::filesystem::path& directory, const SafeTensors& content,
                               uint64_t limit);
// The same with the split given, as for a checkpoint that was read, changed and is written again.
void write_sharded_safetensors(const std::filesystem::path& directory, const ShardedSafeTensors& content);

}  // namespace oscar
