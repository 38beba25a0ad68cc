// Decode over native pages of vector codes (kernels/vector_pages.h): what keys and values share. No word is
// multiplied with a row: keys add up entries of a table, values add up weights by code. Both cost 256 words
// per part and KV head, so short parts go through rows.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kEntry = 4, kTable = kVectorWords * kEntry;  // floats of a group: (256, 4 heads)
constexpr int kPagesAtOnce = 8;  // their tokens' sums fit the L1 cache beside four groups
constexpr int kShortPart = 192;

struct Side {
  const int8_t* words;  // (256, dim) of the KV head
  const float* scales;  // (dim / size)
  int dim, size, groups;
  bool norm;
  Side(const DecodePart& part, bool keys) {
    const CacheFormat& f = *part.format;
    const SideFormat& side = keys ? f.k : f.v;
    const CodebookView& book = keys ? part.inputs->k_book : part.inputs->v_book;
    dim = f.dim;
    size = side.kind == CodeKind::vector4x8 ? 4 : 8;
    groups = dim / size;
    norm = side.norm;
    words = book.words + int64_t{part.head} * kVectorWords * dim;
    scales = book.scales + part.head * groups;
  }
};

OSCAR_INLINE vf load_word(const int8_t* p) {
  return __builtin_convertvector(load_bytes(p), vf);
}

OSCAR_INLINE float* entry_of(float* table, size_t code) {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(table) + (code << 4));
}
OSCAR_INLINE const float* entry_of(const float* table, size_t code) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(table) + (code << 4));
}

// The factor of each token's words; 1 without.
void token_norms(const Side& side, const uint8_t* block, float* norms) {
  for (int t = 0; t < kPage; t += W) {
    vf x = fill(1.0f);
    if (side.norm) {
      const vh_anywhere halves = *reinterpret_cast<const vh_anywhere*>(block + kPage * side.groups + 2 * t);
      x = low_halves(__builtin_convertvector(halves, vi));
    }
    store(norms + t, x);
  }
}

// Rows (64, dim) of a page, each times its norm.
void vector_rows(const Side& side, bool keys, const uint8_t* block, const float* norms, float* rows) {
  for (int t = 0; t < kPage; ++t) {
    for (int group = 0; group < side.groups; ++group) {
      const int code = block[keys ? vector_key_byte(side.dim, side.size, t, group)
                                  : vector_value_byte(side.size, t, group)];
      const float factor = side.scales[group] * norms[t];
      for (int i = group * side.size; i < (group + 1) * side.size; ++i) {
        rows[t * side.dim + i] = side.words[code * side.dim + i] * factor;
      }
    }
  }
}

struct RowsOfPage {
  const float* at[kRowsAtOnce];
  RowsOfPage(const float* rows, int dim) {
    for (int t = 0; t < kRowsAtOnce; ++t) at[t] = rows + t * dim;
  }
};

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
