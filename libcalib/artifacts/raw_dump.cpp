#include "libcalib/artifacts/raw_dump.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/pt.h"
#include "libcalib/parallel.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 256;  // rows converted at a time: they stay in cache; a multiple of add_gram's 128

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Chunk numbers of a directory in numeric order, warm-up chunk 0 left out.
std::vector<int64_t> chunks_of(const fs::path& directory) {
  std::vector<int64_t> chunks;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".pt") continue;
    const auto chunk = number<int64_t>(entry.path().stem().string());
    if (!chunk) throw failure("{}: expected the name of a chunk, a number", entry.path().string());
    if (*chunk != 0) chunks.push_back(*chunk);
  }
  if (error) throw failure("{}: {}", directory.string(), error.message());
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

std::vector<int> global_ids(const fs::path& directory, const std::vector<int>& numbers) {
  const fs::path path = directory / "layer_map.json";
  if (!fs::exists(path)) return numbers;
  const auto map = nlohmann::json::parse(read_text(path), nullptr, false);
  const auto ids = map.is_object() ? map.find("local_to_global") : map.end();
  if (!map.is_object() || ids == map.end() || !ids->is_array()) {
    throw failure("{}: expected {{\"local_to_global\": [ids]}}", path.string());
  }
  std::vector<int> layers;
  for (const int local : numbers) {
    if (static_cast<size_t>(local) >= ids->size() ||
        !(*ids)[static_cast<size_t>(local)].is_number_integer()) {
      throw failure("{}: no global id for layer_{}", path.string(), local);
    }
    layers.push_back((*ids)[static_cast<size_t>(local)].get<int>());
  }
  if (std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end()) {
    throw failure("{}: the global ids must ascend", path.string());
  }
  return layers;
}

fs::path layer_directory(const RawDump& dump, int layer) {
  const auto at = std::find(dump.layers.begin(), dump.layers.end(), layer);
  if (at == dump.layers.end())
    throw invalid("{}: layer {} is not in the dump", dump.directory.string(), layer);
  return dump.directory /
         fmt::format("layer_{}", dump.numbers[static_cast<size_t>(at - dump.layers.begin())]);
}

Tensor read_rows(const fs::path& path) {
  const PtValue value = read_pt(path);
  Tensor tensor = value.tensor(path.string());
  if (tensor.shape.size() != 3) {
    throw failure("{}: expected [tokens, heads, D], found {}", path.string(), to_string(tensor.shape));
  }
  if (tensor.dtype != DType::BF16 && tensor.dtype != DType::F16 && tensor.dtype != DType::F32) {
    throw failure("{}: expected BF16, F16 or F32, found {}", path.string(), info(tensor.dtype).name);
  }
  return tensor;
}

struct Chunk {
  Tensor q, k, v;
  int64_t tokens() const { return k.shape[0]; }
};

Chunk read_chunk(const fs::path& directory, int64_t chunk) {
  const auto path = [&](const char* name) { return directory / name / fmt::format("{}.pt", chunk); };
  Chunk c{read_rows(path("q")), read_rows(path("k")), read_rows(path("v"))};
  const auto& [q, k, v] = c;
  if (q.shape[0] != k.shape[0] || v.shape[0] != k.shape[0] || q.shape[2] != k.shape[2] ||
      v.shape[1] != k.shape[1] || k.shape[1] < 1 || q.shape[1] < 1 || q.shape[1] % k.shape[1] != 0) {
    throw failure(
        "{}: chunk {}: q {}, k {} and v {} do not belong together: expected one number of tokens, one D of q "
        "and k, "
        "and query heads that are a multiple of the KV heads",
        directory.string(), chunk, to_string(q.shape), to_string(k.shape), to_string(v.shape));
  }
  return c;
}

// Rows [first, first + count) as float32.
const float* rows(const Tensor& tensor, int64_t first, int64_t count, std::vector<float>& buffer) {
  const auto width = static_cast<size_t>(tensor.shape[1] * tensor.shape[2]);
  buffer.resize(static_cast<size_t>(count) * width);
  const size_t offset = static_cast<size_t>(first) * width * info(tensor.dtype).size();
  to_float(tensor.dtype, tensor.bytes.data() + offset, buffer.size(), buffer.data());
  return buffer.data();
}

template <typename Work>
void for_blocks(int64_t tokens, Work work) {
  for (int64_t first = 0; first < tokens; first += kBlock) work(first, std::min(kBlock, tokens - first));
}

}  // namespace

RawDump open_raw_dump(const fs::path& directory) {
  RawDump dump;
  dump.directory = directory;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view prefix = "layer_";
    if (!entry.is_directory() || !name.starts_with(prefix)) continue;
    const auto id = number<int>(std::string_view(name).substr(prefix.size()));
    if (!id) throw failure("{}: expected layer_<number>", entry.path().string());
    dump.numbers.push_back(*id);
  }
  if (error) throw invalid("{}: {}", directory.string(), error.message());
  if (dump.numbers.empty()) {
    throw invalid("{}: expected a raw dump with layer_<id>/{{q,k,v}}/<chunk>.pt, found no layer",
                  directory.string());
  }
  std::sort(dump.numbers.begin(), dump.numbers.end());
  dump.layers = global_ids(directory, dump.numbers);
  for (size_t i = 0; i < dump.layers.size(); ++i) {
    const fs::path layer = layer_directory(dump, dump.layers[i]);
    for (const char* name : {"q", "k", "v"}) {
      auto chunks = chunks_of(layer / name);
      if (i == 0 && dump.chunks.empty())
        dump.chunks = std::move(chunks);
      else if (chunks != dump.chunks) {
        throw failure("{}: has {} chunks where layer {} has {}, or others: the dump is not whole",
                      (layer / name).string(), chunks.size(), dump.layers[0], dump.chunks.size());
      }
    }
  }
  if (dump.chunks.empty()) throw failure("{}: no chunk but the warm-up chunk 0", directory.string());
  for (const int64_t chunk : dump.chunks) {
    const fs::path path = directory / "seq_lens" / fmt::format("{}.pt", chunk);
    if (!fs::exists(path)) {
      dump.sequence_lengths.clear();
      break;
    }
    const PtValue value = read_pt(path);
    const auto lengths = value.tensor(path.string()).integers();
    dump.sequence_lengths.insert(dump.sequence_lengths.end(), lengths.begin(), lengths.end());
  }
  return dump;
}

LayerStatistics read_raw_layer(const RawDump& dump, int layer) {
  const fs::path directory = layer_directory(dump, layer);
  LayerStatistics statistics;
  std::vector<float> q, k, v;
  std::vector<Chunk> chunks;
  for (const int64_t number : dump.chunks) {
    const Chunk& c = chunks.emplace_back(read_chunk(directory, number));
    LayerShape shape;
    shape.layer = layer;
    shape.q_heads = static_cast<int>(c.q.shape[1]);
    shape.kv_heads = static_cast<int>(c.k.shape[1]);
    shape.dim_k = static_cast<int>(c.k.shape[2]);
    shape.dim_v = static_cast<int>(c.v.shape[2]);
    shape.scale = 1 / std::sqrt(static_cast<double>(shape.dim_k));
    if (chunks.size() == 1) statistics.sums = LayerSums(shape);
    if (!(shape == statistics.sums.shape())) {
      throw failure("{}: chunk {} has other heads or dims than chunk {}", directory.string(), number,
                    dump.chunks[0]);
    }
    for_blocks(c.tokens(), [&](int64_t first, int64_t count) {
      statistics.sums.add_rows(rows(c.q, first, count, q), rows(c.k, first, count, k),
                               rows(c.v, first, count, v), nullptr, count);
    });
  }
  LayerSums& sums = statistics.sums;
  std::vector<Matrix> sigma_q;
  for (int h = 0; h < sums.shape().kv_heads; ++h) {
    const double count = static_cast<double>(std::max<int64_t>(sums.tokens, 1)) * sums.shape().group();
    sigma_q.push_back(sums.matrix(Sum::qq, h) / count);
  }
  for (const Chunk& c : chunks) {
    for_blocks(c.tokens(), [&](int64_t first, int64_t count) {
      sums.add_proxy(sigma_q, rows(c.k, first, count, k), rows(c.v, first, count, v), count);
    });
  }
  return statistics;
}

std::map<int, LayerStatistics> read_raw_layers(const RawDump& dump, int threads,
                                               const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<LayerStatistics> layers(dump.layers.size());
  const auto total = static_cast<int64_t>(layers.size());
  int64_t done = 0;
  std::mutex mutex;
  parallel_for(total, threads, [&](int64_t i) {
    layers[static_cast<size_t>(i)] = read_raw_layer(dump, dump.layers[static_cast<size_t>(i)]);
    if (!progress) return;
    const std::lock_guard lock(mutex);
    progress(++done, total);
  });
  std::map<int, LayerStatistics> by_id;
  for (size_t i = 0; i < layers.size(); ++i) by_id.emplace(dump.layers[i], std::move(layers[i]));
  return by_id;
}

RawDumpWriter::RawDumpWriter(fs::path directory, DType dtype)
    : directory_(std::move(directory)), dtype_(dtype) {
  if (dtype != DType::BF16 && dtype != DType::F16 && dtype != DType::F32) {
    throw invalid("raw dump: values are written as BF16, F16 or F32, not {}", info(dtype).name);
  }
}

void RawDumpWriter::chunk(int layer, int64_t chunk, const LayerShape& shape, const float* q, const float* k,
                          const float* v, int64_t tokens) {
  const auto write = [&](const char* name, int heads, int dim, const float* values) {
    const fs::path folder = directory_ / fmt::format("layer_{}", layer) / name;
    make_directory(folder);
    const Shape dims{tokens, heads, dim};
    const auto count = static_cast<size_t>(element_count(dims));
    std::vector<std::byte> bytes(count * info(dtype_).size());
    from_float(dtype_, values, count, bytes.data());
    const std::string stem = std::to_string(chunk);
    write_pt(folder / (stem + ".pt"), PtValue{make_tensor(dtype_, dims, std::move(bytes))}, stem);
  };
  write("q", shape.q_heads, shape.dim_k, q);
  write("k", shape.kv_heads, shape.dim_k, k);
  write("v", shape.kv_heads, shape.dim_v, v);
}

void RawDumpWriter::lengths(int64_t chunk, const std::vector<int32_t>& seq_lens) {
  const fs::path folder = directory_ / "seq_lens";
  make_directory(folder);
  const std::string stem = std::to_string(chunk);
  write_pt(folder / (stem + ".pt"),
           PtValue{make_tensor({static_cast<int64_t>(seq_lens.size())}, std::vector<int32_t>(seq_lens))},
           stem);
}

}  // namespace oscar
