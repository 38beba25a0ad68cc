// What a thread needs to work on a part.

namespace oscar::OSCAR_LEVEL {
namespace {

// What a part's steps share. Logits and weights are (group, stride), token t at t - begin; begin is the first
// token of a page.
struct PartPlan {
  int32_t begin, stride;
  int64_t k_bytes, v_bytes, page_bytes;  // native: of a KV head's block of keys, of values, of a page
};

struct DecodeScratch {
  float* o;            // (group, dim), of the caller
  float* logits;       // (group, kPartTokensOfVectors)
  float* scales;       // (16, 64), with `minima` behind it
  float* minima;       // (8, 64)
  float* operands;     // what the inner loop multiplies with, in its order
  float* lanes;        // int2: (dim, heads of a block, W); planes: (places, heads of a block, W)
  float* words;        // vectors: tables of keys
  float* sums;         // vectors: sums of weights
  float* rows;         // vectors: (64, dim)
  int64_t* tables_of;  // vectors: sequence and KV head that `words` are of
  int64_t bytes;

  DecodeScratch(const CacheFormat& f, void* memory) : o(nullptr), bytes(0) {
    const bool vectors = has_codebook(f), planes = f.k.kind == CodeKind::planes;
    const auto take = [&](int64_t count) {
      float* at = memory ? reinterpret_cast<float*>(static_cast<char*>(memory) + bytes) : nullptr;
      bytes += (4 * count + 63) / 64 * 64;
      return at;
    };
    tables_of = reinterpret_cast<int64_t*>(take(2));
    logits = take(int64_t{f.group} * coded_part_tokens(f));
    scales = take(16 * 64);
    minima = scales + 8 * 64;
    operands = take(f.dim * 32);
    lanes = take(f.dim * (planes ? 2 : 1) * 4 * W);
    words = sums = rows = nullptr;
    if (!vectors) return;
    const int64_t table = f.dim / 4 * 256 * 4;
    words = take((f.group + 3) / 4 * table);
    sums = take(table);
    rows = take(64 * f.dim);
  }
};

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
