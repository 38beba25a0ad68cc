#include <algorithm>
#include <numeric>

#include "formats/error.h"
#include "formats/pt.h"
#include "libcalib/artifacts/rows_file.h"

namespace oscar {
namespace {

// The chunks of one of q, k, v, one after the other: every `stride`-th token of the whole, each in the dump's
// dtype.
Tensor joined(const std::filesystem::path& folder, const std::vector<int64_t>& chunks, int stride,
              std::vector<int64_t>& tokens) {
  Tensor first;
  std::vector<std::byte> bytes;
  int64_t total = 0, taken = 0;
  tokens.clear();
  for (const int64_t chunk : chunks) {
    const auto path = folder / fmt::format("{}.pt", chunk);
    const PtValue value = read_pt(path);
    const Tensor& tensor = value.tensor(path.string());
    if (tensor.shape.size() != 3 ||
        (tensor.dtype != DType::BF16 && tensor.dtype != DType::F16 && tensor.dtype != DType::F32)) {
      throw failure("{}: expected [tokens, heads, D] of BF16, F16 or F32, found {} {}", path.string(),
                    info(tensor.dtype).name, to_string(tensor.shape));
    }
    if (tokens.empty()) first = tensor;
    if (tensor.dtype != first.dtype || tensor.shape[1] != first.shape[1] ||
        tensor.shape[2] != first.shape[2]) {
      throw failure("{}: {} {} where the first chunk has {} {}", path.string(), info(tensor.dtype).name,
                    to_string(tensor.shape), info(first.dtype).name, to_string(first.shape));
    }
    const int64_t n = tensor.shape[0];
    const size_t row = static_cast<size_t>(tensor.shape[1] * tensor.shape[2]) * info(tensor.dtype).size();
    for (int64_t t = (stride - total % stride) % stride; t < n; t += stride, ++taken) {
      const auto from = tensor.bytes.subspan(static_cast<size_t>(t) * row, row);
      bytes.insert(bytes.end(), from.begin(), from.end());
    }
    tokens.push_back(n);
    total += n;
  }
  return make_tensor(first.dtype, {taken, first.shape[1], first.shape[2]}, std::move(bytes));
}

std::vector<int32_t> positions_of(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> positions;
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < length; ++t) positions.push_back(static_cast<int32_t>(t));
  }
  return positions;
}

int count(int64_t extent) {
  return static_cast<int>(extent);
}

}  // namespace

RowsFile rows_of_raw_dump(const RawDump& dump, int stride) {
  if (stride < 1) throw invalid("{}: a stride of {} tokens", dump.directory.string(), stride);
  RowsFile rows;
  rows.q_sample_stride = stride;
  for (size_t i = 0; i < dump.layers.size(); ++i) {
    const auto folder = dump.directory / fmt::format("layer_{}", dump.numbers[i]);
    std::vector<int64_t> q_tokens, k_tokens, v_tokens;
    const Tensor q = joined(folder / "q", dump.chunks, stride, q_tokens);
    RowsLayer layer{joined(folder / "k", dump.chunks, 1, k_tokens),
                    joined(folder / "v", dump.chunks, 1, v_tokens),
                    make_tensor(q.shape, q.floats()),
                    {}};
    const auto& lengths = dump.sequence_lengths.empty() ? k_tokens : dump.sequence_lengths;
    const Shape &k = layer.k.shape, &v = layer.v.shape;
    if (q_tokens != k_tokens || v_tokens != k_tokens || k[1] < 1 || v[1] != k[1] || q.shape[2] != k[2] ||
        q.shape[1] % k[1] != 0) {
      throw failure("{}: q {}, k {} and v {} do not belong together", folder.string(), to_string(q.shape),
                    to_string(k), to_string(v));
    }
    const int64_t counted = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    if (counted != k[0] || std::ranges::any_of(lengths, [](int64_t length) { return length < 0; })) {
      throw failure("{}: seq_lens/ count {} tokens, the chunks of layer {} have {}", dump.directory.string(),
                    counted, dump.layers[i], k[0]);
    }
    layer.positions = positions_of(lengths);
    if (i == 0) {
      rows.tokens = k[0];
      rows.q_heads = count(q.shape[1]);
      rows.kv_heads = count(k[1]);
      rows.dim_k = count(k[2]);
      rows.dim_v = count(v[2]);
    } else if (rows.tokens != k[0] || rows.q_heads != q.shape[1] || rows.kv_heads != k[1] ||
               rows.dim_k != k[2] || rows.dim_v != v[2]) {
      throw failure(
          "{}: layer {} has other heads, dims or tokens than layer {}: a rows file holds one of each",
          dump.directory.string(), dump.layers[i], dump.layers[0]);
    }
    rows.layers.emplace(dump.layers[i], std::move(layer));
  }
  return rows;
}

}  // namespace oscar
