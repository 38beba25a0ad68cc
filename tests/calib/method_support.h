// Two layers that every method can be fitted to, and what the fitted codes do to their rows.
#pragma once
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/fit.h"
#include "tests/calib/sample.h"

namespace oscar::test {

inline constexpr int64_t kTokens = 384;  // whole pages of every codec

// Layers 2 and 5: Hq = 4, Hkv = 2, D = 32, which the codecs of all methods take.
inline const std::map<int, LayerStatistics>& method_layers() {
  static const auto layers = [] {
    std::map<int, LayerStatistics> all;
    for (const int id : {2, 5})
      all[id] = full_statistics(shape_of(id, 4, 2, 32, 32), kTokens, static_cast<uint64_t>(100 * id));
    return all;
  }();
  return layers;
}
inline std::vector<LayerShape> method_shapes() {
  std::vector<LayerShape> shapes;
  for (const auto& [id, layer] : method_layers()) shapes.push_back(layer.sums.shape());
  return shapes;
}
inline FitResult fitted(const std::string& specification, int threads = 1) {
  return fit({method_layers(), {}}, parse_method(specification), {.threads = threads, .progress = {}});
}

inline const SideCodes& side_of(const CacheCodes& codes, Side side) {
  return side == Side::K ? codes.k : codes.v;
}
// (x - mean) forward of a head's sampled rows, float32 (N, D): what is coded.
inline std::vector<float> coded_rows(const LayerStatistics& layer, Side side, int head,
                                     const Transform& transform) {
  const LayerShape& shape = layer.sums.shape();
  const int dim = shape.dim(side);
  const auto& rows = side == Side::K ? layer.rows.k : layer.rows.v;
  std::vector<float> mapped(static_cast<size_t>(layer.rows.count() * dim));
  transform.rows(rows.data() + head * dim, shape.kv_heads * dim, layer.rows.count(), dim, mapped.data());
  const Vector offset = transform.offset(dim);
  for (size_t i = 0; i < mapped.size(); ++i)
    mapped[i] -= static_cast<float>(offset[static_cast<Eigen::Index>(i) % dim]);
  return mapped;
}
// What an error says; "nothing was thrown" otherwise.
template <typename Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// The bytes of the codes as a file, without the names that say how they were made.
inline std::string bytes_of(CacheCodes codes) {
  codes.name = codes.k.objective = codes.v.objective = "";
  const TempDir folder;
  write_codes(folder / "codes.safetensors", codes, {});
  return read(folder / "codes.safetensors");
}

}  // namespace oscar::test
