// PQ books as the codes of a cache, and back.
#include <bit>
#include <cmath>

#include "formats/dtype.h"
#include "formats/error.h"
#include "libcalib/artifacts/product_codebooks.h"
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/fit.h"

namespace oscar {
namespace {

std::shared_ptr<const Codebook> codebook_of(const ProductCodebooks& books, const std::vector<float>& book,
                                            int layer) {
  const auto size = static_cast<size_t>(books.centroids * books.sub_dim);
  if (book.size() != size * static_cast<size_t>(books.n_sub))
    throw invalid("{} books: layer {}: expected {} numbers, found {}", side_name(books.side), layer,
                  size * static_cast<size_t>(books.n_sub), book.size());
  Codebook codebook;
  for (int i = 0; i < books.n_sub; ++i) {
    CodeGroup& group = codebook.groups.emplace_back();
    group.size = books.sub_dim;
    group.bits = std::countr_zero(static_cast<unsigned>(books.centroids));
    for (size_t at = static_cast<size_t>(i) * size; at < static_cast<size_t>(i + 1) * size; ++at) {
      const float word = f16_to_float(float_to_f16(book[at]));
      if (!std::isfinite(word))
        throw invalid("{} books: layer {}: {} is beyond the fp16 that the engine loads",
                      side_name(books.side), layer, book[at]);
      group.words.push_back(word);
    }
  }
  return std::make_shared<const Codebook>(std::move(codebook));
}

// "codes 'awvq-4x8', layer 3, head 1" for the refusals below.
std::string place(const SideCodes& codes, int layer, size_t head) {
  return fmt::format("{} codes '{}', layer {}, head {}", side_name(codes.side), codes.objective, layer, head);
}

void need_product(const SideCodes& codes, int layer, size_t head, const HeadCode& code,
                  const CodeGroup& shape) {
  const std::string where = place(codes, layer, head);
  const auto* book = code.options.codebook.get();
  if (code.codec->name != "vector" || !book)
    throw invalid("{}: codec {}: PQ books hold vector codes alone", where, code.codec->name);
  if (book->norm)
    throw invalid("{}: its rows are divided by a norm, which PQ books do not keep (norm=0)", where);
  for (const CodeGroup& group : book->groups) {
    if (group.size != shape.size || group.bits != shape.bits || group.bits > 8)
      throw invalid("{}: groups {}: PQ books need one shape everywhere, of at most 8 bits", where,
                    shape_name(*book));
  }
}

std::vector<float> words_of(const Codebook& codebook) {
  std::vector<float> words;
  for (const CodeGroup& group : codebook.groups)
    words.insert(words.end(), group.words.begin(), group.words.end());
  return words;
}

}  // namespace

SideCodes codes_of(const ProductCodebooks& books, const RotationSet& rotations) {
  const char* side = side_name(books.side);
  if (books.centroids2 > 0)
    throw invalid("{} books: two stages (RVQ): no codec here adds two codewords up; PQ books can be read",
                  side);
  if (books.side != rotations.side)
    throw invalid("{} books with rotations of {}", side, side_name(rotations.side));
  if (books.convention != kPlainRows && books.convention != kCentredRows)
    throw invalid("{} books: rotation_convention: expected {} or {}, found '{}'", side, kPlainRows,
                  kCentredRows, books.convention);
  const bool centred = books.convention == kCentredRows;
  const bool every = books.layers.contains(ProductCodebooks::kEveryLayer);
  for (const auto& [id, layer] : books.layers) {
    if (!every && !rotations.layers.contains(id))
      throw invalid("{} books: layer {} has no rotation", side, id);
  }
  SideCodes codes{books.side, rotations.objective, {}};
  for (const auto& [id, map] : rotations.layers) {
    const auto found = books.layers.find(every ? ProductCodebooks::kEveryLayer : id);
    if (found == books.layers.end())
      throw invalid("{} books: layer {} has a rotation and no books", side, id);
    if (map.means.empty() == centred)
      throw invalid(
          "{} books: layer {}: rotation_convention {}, but the rotations have {}means: not those that the "
          "books were trained with",
          side, id, books.convention, centred ? "no " : "");
    const int64_t dim = map.rotation[0].rows();
    if (int64_t{books.n_sub} * books.sub_dim != dim)
      throw invalid("{} books: {} x {} channels, the head dim of layer {} is {}", side, books.n_sub,
                    books.sub_dim, id, dim);
    std::vector<std::shared_ptr<const Codebook>> shared;
    for (const auto& book : found->second.stage1) shared.push_back(codebook_of(books, book, id));
    const size_t heads = std::max({map.rotation.size(), map.means.size(), shared.size()});
    for (size_t h = 0; h < heads; ++h) {
      const auto of_head = [&](const auto& values) -> const auto& {
        if (values.size() != 1 && values.size() != heads)
          throw invalid("{} books: layer {}: {} heads here, {} there", side, id, values.size(), heads);
        return values[values.size() == 1 ? 0 : h];
      };
      HeadCode& head = codes.layers[id].emplace_back();
      head.transform.forward = of_head(map.rotation);
      if (!map.inverse.empty()) head.transform.inverse = of_head(map.inverse);
      if (!map.means.empty()) head.transform.mean = of_head(map.means);
      if (!map.eigenvalues.empty()) head.eigenvalues = of_head(map.eigenvalues);
      head.codec = &find_codec("vector");
      head.options.codebook = of_head(shared);
    }
  }
  return codes;
}

RotationSet maps_of(const SideCodes& codes) {
  SideCodes plain = codes;
  for (auto& [id, heads] : plain.layers) {
    for (HeadCode& head : heads) {
      head.codec = &find_codec("sglang-prefill");
      head.options = {};
    }
  }
  return rotation_set(plain);
}

ProductCodebooks product_codebooks_of(const SideCodes& codes) {
  if (codes.layers.empty()) throw invalid("{} codes: no layers", side_name(codes.side));
  const auto& first_head = codes.layers.begin()->second.at(0);
  if (!first_head.options.codebook || first_head.options.codebook->groups.empty())
    throw invalid("{}: codec {}: PQ books hold vector codes alone",
                  place(codes, codes.layers.begin()->first, 0), first_head.codec->name);
  const CodeGroup& shape = first_head.options.codebook->groups[0];
  const bool centred = first_head.transform.mean.size() > 0;

  ProductCodebooks books;
  books.side = codes.side;
  books.rotation = rotation_file_stem(maps_of(codes));
  books.convention = centred ? kCentredRows : kPlainRows;
  books.sub_dim = shape.size;
  books.n_sub = static_cast<int>(first_head.options.codebook->groups.size());
  books.centroids = 1 << shape.bits;
  bool one = true;  // book for all heads of a layer
  for (const auto& [id, heads] : codes.layers) {
    ProductLayer& layer = books.layers[id];
    for (size_t h = 0; h < heads.size(); ++h) {
      need_product(codes, id, h, heads[h], shape);
      if (static_cast<int>(heads[h].options.codebook->groups.size()) != books.n_sub)
        throw invalid("{}: {} groups, {} elsewhere", place(codes, id, h),
                      heads[h].options.codebook->groups.size(), books.n_sub);
      if ((heads[h].transform.mean.size() > 0) != centred)
        throw invalid("{}: some heads are centred and others not", place(codes, id, h));
      layer.stage1.push_back(words_of(*heads[h].options.codebook));
      one = one && layer.stage1[h] == layer.stage1[0];
    }
    if (layer.stage1.size() != codes.layers.begin()->second.size())
      throw invalid("{}: {} heads, {} elsewhere", place(codes, id, 0), layer.stage1.size(),
                    codes.layers.begin()->second.size());
  }
  for (auto& [id, layer] : books.layers) {
    if (one) layer.stage1.resize(1);
  }
  return books;
}

}  // namespace oscar
