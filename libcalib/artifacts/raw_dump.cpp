#include "libcalib/artifacts/raw_dump.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/pt.h"
#include "libcalib/artifacts/raw_dump_parts.h"
#include "libcalib/parallel.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 256;  // rows converted at a time: they stay in cache; a multiple of add_gram's 128

fs::path layer_directory(const RawDump& dump, int layer) {
  const auto at = std::find(dump.layers.begin(), dump.layers.end(), layer);
  if (at == dump.layers.end())
    throw invalid("{}: layer {} is not in the dump", dump.directory.string(), layer);
  return dump.directory /
         fmt::format("layer_{}", dump.numbers[static_cast<size_t>(at - dump.layers.begin())]);
}

struct Chunk {
  Tensor q, k, v;
  int64_t tokens() const { return k.shape[0]; }
};

// Chunk `i` of a layer; it has the tokens that the first layer has, and the dtype of the dump.
Chunk read_chunk(const RawDump& dump, const fs::path& directory, size_t i) {
  const int64_t chunk = dump.chunks[i];
  const auto path = [&](const char* name) { return directory / name / fmt::format("{}.pt", chunk); };
  Chunk c{read_raw_rows(path("q")), read_raw_rows(path("k")), read_raw_rows(path("v"))};
  const auto& [q, k, v] = c;
  if (q.shape[0] != k.shape[0] || v.shape[0] != k.shape[0] || q.shape[2] != k.shape[2] ||
      v.shape[1] != k.shape[1] || k.shape[1] < 1 || q.shape[1] < 1 || q.shape[1] % k.shape[1] != 0) {
    throw failure(
        "{}: chunk {}: q {}, k {} and v {} do not belong together: expected one number of tokens, one D of q "
        "and k, "
        "and query heads that are a multiple of the KV heads",
        directory.string(), chunk, to_string(q.shape), to_string(k.shape), to_string(v.shape));
  }
  const auto& lengths = dump.chunk_lengths[i];
  if (const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      c.tokens() != tokens) {
    throw failure("{}: chunk {} has {} tokens, in layer_{} it has {}", directory.string(), chunk, c.tokens(),
                  dump.numbers[0], tokens);
  }
  for (const auto& [name, tensor] : {std::pair{"q", &q}, std::pair{"k", &k}, std::pair{"v", &v}}) {
    if (tensor->dtype == dump.dtype) continue;
    throw failure("{}: chunk {}: {} is {}, the dump is {}", directory.string(), chunk, name,
                  info(tensor->dtype).name, info(dump.dtype).name);
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

Tensor read_raw_rows(const fs::path& path) {
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

LayerStatistics read_raw_layer(const RawDump& dump, int layer) {
  const fs::path directory = layer_directory(dump, layer);
  LayerStatistics statistics;
  std::vector<float> q, k, v;
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < dump.chunks.size(); ++i) {
    const Chunk& c = chunks.emplace_back(read_chunk(dump, directory, i));
    LayerShape shape;
    shape.layer = layer;
    shape.q_heads = static_cast<int>(c.q.shape[1]);
    shape.kv_heads = static_cast<int>(c.k.shape[1]);
    shape.dim_k = static_cast<int>(c.k.shape[2]);
    shape.dim_v = static_cast<int>(c.v.shape[2]);
    shape.scale = 1 / std::sqrt(static_cast<double>(shape.dim_k));
    if (chunks.size() == 1) statistics.sums = LayerSums(shape);
    if (!(shape == statistics.sums.shape())) {
      throw failure("{}: chunk {} has other heads or dims than chunk {}", directory.string(), dump.chunks[i],
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
