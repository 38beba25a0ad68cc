#include "libcalib/artifacts/product_codebooks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "formats/error.h"
#include "libcalib/artifacts/pt_fields.h"

namespace oscar {
namespace {

using pt_fields::Fields;
using pt_fields::pt;

constexpr int kMost = 256;  // an index is one byte

bool is_count(int64_t centroids) {
  return centroids >= 1 && centroids <= kMost && std::has_single_bit(static_cast<uint64_t>(centroids));
}

// One stage: [L, n_sub, C, sub_dim], or [L, Hkv, n_sub, C, sub_dim].
struct Stage {
  int centroids = 0;
  std::vector<std::vector<std::vector<float>>> books;  // (L)(1 or Hkv), each (n_sub, C, sub_dim)
};
Stage read_stage(const Fields& file, const char* name, const char* count, const ProductCodebooks& books) {
  const Tensor& tensor = file.need(name).tensor(file.where(name));
  const bool per_head = tensor.shape.size() == 5;
  const int64_t n = books.n_sub, d = books.sub_dim;
  const auto values = pt_fields::need_finite(tensor, per_head ? Shape{-1, -1, n, -1, d} : Shape{-1, n, -1, d},
                                             file.where(name));
  const int64_t centroids = tensor.shape[tensor.shape.size() - 2];
  const int64_t heads = per_head ? tensor.shape[1] : 1;
  if (!is_count(centroids) || heads < 1) {
    throw failure("{}: {}: expected a power of two of at most {} centroids, found {}", file.where(), name,
                  kMost, to_string(tensor.shape));
  }
  if (file.find(count)) file.integer(count, centroids, centroids);
  Stage stage{static_cast<int>(centroids), {}};
  const int64_t size = n * centroids * d;
  for (int64_t l = 0; l < tensor.shape[0]; ++l) {
    auto& layer = stage.books.emplace_back();
    for (int64_t h = 0; h < heads; ++h) {
      const auto from = values.begin() + (l * heads + h) * size;
      layer.emplace_back(from, from + size);
    }
  }
  return stage;
}

// A list of n_sub tensors [C, sub_dim] for all layers.
Stage read_shared(const Fields& file, const ProductCodebooks& books) {
  const auto& list = pt_fields::items_of(file.need("codebooks"), file.where("codebooks"));
  if (static_cast<int64_t>(list.size()) != books.n_sub)
    throw failure("{}: codebooks: expected n_sub = {}, found {}", file.where(), books.n_sub, list.size());
  Stage stage;
  std::vector<float> book;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}: codebooks[{}]", file.where(), i);
    const Tensor& tensor = list[i].tensor(where);
    const auto values = pt_fields::need_finite(
        tensor, {i == 0 ? int64_t{-1} : int64_t{stage.centroids}, books.sub_dim}, where);
    if (!is_count(tensor.shape[0])) {
      throw failure("{}: expected a power of two of at most {} centroids, found {}", where, kMost,
                    tensor.shape[0]);
    }
    stage.centroids = static_cast<int>(tensor.shape[0]);
    book.insert(book.end(), values.begin(), values.end());
  }
  if (file.find("n_centroids")) file.integer("n_centroids", stage.centroids, stage.centroids);
  stage.books = {{std::move(book)}};
  return stage;
}

std::vector<int> read_ids(const Fields& file, size_t layers, bool shared) {
  std::vector<int> ids;
  if (!file.find("layer_ids")) {
    if (shared) return {ProductCodebooks::kEveryLayer};
    for (size_t i = 0; i < layers; ++i) ids.push_back(static_cast<int>(i));
    return ids;
  }
  const std::string where = file.where("layer_ids");
  for (const PtValue& id : pt_fields::items_of(file.need("layer_ids"), where))
    ids.push_back(pt_fields::layer_id(id, where));
  if (std::set<int>(ids.begin(), ids.end()).size() != ids.size())
    throw failure("{}: a layer is there twice: {}", where, fmt::join(ids, ", "));
  if (!shared && ids.size() != layers)
    throw failure("{}: expected {} layers as the books have, found {}", where, layers, ids.size());
  return ids;
}

std::optional<double> ratio_of(const Fields& file, const char* name, int layer) {
  const PtValue* all = file.find(name);
  const PtValue* one = all ? all->dict(file.where(name)).find(int64_t{layer}) : nullptr;
  const auto* value = one ? std::get_if<double>(&one->value) : nullptr;
  return value ? std::optional(*value) : std::nullopt;
}

// sqnr_per_layer and sqnr_avg, where any layer has one.
void set_ratios(PtDict& file, const ProductCodebooks& books, const std::string& name,
                std::optional<double> ProductLayer::*field) {
  PtDict all;
  double sum = 0;
  for (const auto& [id, layer] : books.layers) {
    if (!(layer.*field)) continue;
    all.set(int64_t{id}, pt(*(layer.*field)));
    sum += *(layer.*field);
  }
  if (all.items.empty()) return;
  const auto count = static_cast<double>(all.items.size());
  file.set(name + "_per_layer", pt(std::move(all)));
  file.set(name + "_avg", pt(sum / count));
}

PtValue stage_tensor(const ProductCodebooks& books, const std::filesystem::path& path, int centroids,
                     std::vector<std::vector<float>> ProductLayer::*stage) {
  const size_t heads = (books.layers.begin()->second.*stage).size();
  const auto size = static_cast<size_t>(books.n_sub) * static_cast<size_t>(centroids * books.sub_dim);
  std::vector<float> values;
  for (const auto& [id, layer] : books.layers) {
    if ((layer.*stage).size() != heads || heads == 0)
      throw invalid("{}: layer {}: books of {} heads, expected {}", path.string(), id, (layer.*stage).size(),
                    heads);
    for (const auto& book : layer.*stage) {
      if (book.size() != size)
        throw invalid("{}: layer {}: a book of {} numbers, expected {}", path.string(), id, book.size(),
                      size);
      values.insert(values.end(), book.begin(), book.end());
    }
  }
  Shape shape{static_cast<int64_t>(books.layers.size()), books.n_sub, centroids, books.sub_dim};
  if (heads > 1) shape.insert(shape.begin() + 1, static_cast<int64_t>(heads));
  return pt(make_tensor(std::move(shape), std::move(values)));
}

}  // namespace

std::string product_codebooks_name(const ProductCodebooks& books) {
  const bool two = books.centroids2 > 0;
  const std::string centroids =
      two ? fmt::format("{}x{}", books.centroids, books.centroids2) : std::to_string(books.centroids);
  return fmt::format("{}_{}_n{}_c{}_d{}.pt", side_name(books.side), two ? "rvq" : "pq", books.n_sub,
                     centroids, books.sub_dim);
}

ProductCodebooks read_product_codebooks(const std::filesystem::path& path) {
  const PtValue root = read_pt(path);
  const Fields file(root, path.string());
  const bool two = file.find("codebooks_stage1"), own = file.find("codebooks_per_layer");
  if (!two && !own && !file.find("codebooks")) {
    throw failure(
        "{}: expected codebooks_stage1, codebooks_per_layer or codebooks: not a file of PQ or RVQ books",
        path.string());
  }
  ProductCodebooks books;
  books.n_sub = static_cast<int>(file.integer("n_sub", 1, 1 << 16));
  books.sub_dim = static_cast<int>(file.integer("sub_dim", 1, 1 << 16));
  if (file.find("model")) books.model = file.text("model");
  if (file.find("rotation")) books.rotation = file.text("rotation");
  if (file.find("rotation_convention")) books.convention = file.text("rotation_convention");
  const std::string name = path.filename().string();
  const std::string side = file.find("tensor") ? file.text("tensor") : name.substr(0, name.find('_'));
  if (side != "k" && side != "v")
    throw failure("{}: tensor: expected k or v, found '{}'", path.string(), side);
  books.side = side == "k" ? Side::K : Side::V;

  const Stage first = two   ? read_stage(file, "codebooks_stage1", "n_cents1", books)
                      : own ? read_stage(file, "codebooks_per_layer", "n_centroids", books)
                            : read_shared(file, books);
  const Stage second = two ? read_stage(file, "codebooks_stage2", "n_cents2", books) : Stage{};
  books.centroids = first.centroids;
  books.centroids2 = second.centroids;
  if (two && (second.books.size() != first.books.size() || second.books[0].size() != first.books[0].size()))
    throw failure("{}: codebooks_stage2 has other layers or heads than codebooks_stage1", path.string());
  const bool shared = !two && !own;
  const auto ids = read_ids(file, first.books.size(), shared);
  for (size_t i = 0; i < ids.size(); ++i) {
    ProductLayer& layer = books.layers[ids[i]];
    layer.stage1 = first.books[shared ? 0 : i];
    if (two) layer.stage2 = second.books[i];
    layer.sqnr = ratio_of(file, "sqnr_per_layer", ids[i]);
    layer.sqnr_rvq = ratio_of(file, "sqnr_rvq_per_layer", ids[i]);
  }
  if (books.layers.empty()) throw failure("{}: no layers", path.string());
  return books;
}

void write_product_codebooks(const std::filesystem::path& path, const ProductCodebooks& books) {
  const bool two = books.centroids2 > 0;
  if (books.layers.empty() || !is_count(books.centroids) || (two && !is_count(books.centroids2)))
    throw invalid("{}: expected layers, and powers of two of at most {} centroids", path.string(), kMost);
  PtDict file;
  PtList ids;
  for (const auto& [id, layer] : books.layers) {
    if (id < 0)
      throw invalid("{}: books for every layer are written for each of them: give their ids", path.string());
    ids.items.push_back(pt(int64_t{id}));
  }
  file.set("layer_ids", pt(std::move(ids)));
  file.set("n_sub", pt(int64_t{books.n_sub}));
  file.set("sub_dim", pt(int64_t{books.sub_dim}));
  file.set("model", pt(books.model));
  file.set("tensor", pt(side_name(books.side)));
  file.set("rotation", pt(books.rotation));
  file.set("rotation_convention", pt(books.convention));
  const size_t heads = books.layers.begin()->second.stage1.size();
  if (heads > 1) {
    file.set("per_head", pt(true));
    file.set("kv_heads", pt(static_cast<int64_t>(heads)));
  }
  set_ratios(file, books, "sqnr", &ProductLayer::sqnr);
  if (two) {
    file.set("codebooks_stage1", stage_tensor(books, path, books.centroids, &ProductLayer::stage1));
    file.set("codebooks_stage2", stage_tensor(books, path, books.centroids2, &ProductLayer::stage2));
    file.set("n_cents1", pt(int64_t{books.centroids}));
    file.set("n_cents2", pt(int64_t{books.centroids2}));
    set_ratios(file, books, "sqnr_rvq", &ProductLayer::sqnr_rvq);
  } else {
    file.set("codebooks_per_layer", stage_tensor(books, path, books.centroids, &ProductLayer::stage1));
    file.set("n_centroids", pt(int64_t{books.centroids}));
  }
  write_pt(path, pt(std::move(file)), path.stem().string());
}

}  // namespace oscar
