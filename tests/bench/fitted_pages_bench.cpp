// Codes of real rows for bench_decode_vector:
//
//   bench_fitted_pages statistics.h5 codes.safetensors D out
//
// codes.safetensors: oscar-fit statistics.h5 --method awvq, or with shape=8x8; one shape, no norms. Eight KV
// heads of D channels are made of heads all over the model, side by side where they have fewer channels.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "kernels/write.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/codeword_storage.h"
#include "tests/bench/fitted_pages.h"

using namespace oscar;

namespace {

constexpr int kMostPages = 64;

// Words and rows of one head of the model become channels [at, at + d) of KV head `to`.
void place_words(const Codebook& book, bench::FittedPages& p, int side, int to, int at) {
  int channel = at;
  for (const CodeGroup& group : book.groups) {
    const Int8Words words = int8_words(group.words);
    if (group.size != p.size || group.bits != 8 || words.values.empty() || book.norm)
      throw std::runtime_error(
          fmt::format("codes of one shape, {}x8 in int8 and without norms, are needed", p.size));
    for (int c = 0; c < 256; ++c)
      for (int i = 0; i < p.size; ++i)
        p.words[side][static_cast<size_t>((to * 256 + c) * p.dim + channel + i)] =
            words.values[static_cast<size_t>(c * p.size + i)];
    p.scales[side][static_cast<size_t>((to * p.dim + channel) / p.size)] = words.scale;
    channel += p.size;
  }
}

void place_rows(const SampledRows& rows, Side side, int heads, int head, int d, const Transform& transform,
                int64_t tokens, const bench::FittedPages& p, int to, int at, std::vector<float>& out) {
  std::vector<float> coded(static_cast<size_t>(tokens * d));
  const auto& from = side == Side::K ? rows.k : rows.v;
  transform.rows(from.data() + head * d, int64_t{heads} * d, tokens, d, coded.data());
  const Vector offset = transform.offset(d);
  for (int64_t t = 0; t < tokens; ++t)
    for (int i = 0; i < d; ++i)
      out[static_cast<size_t>((t * bench::kFittedHeads + to) * p.dim + at + i)] =
          coded[static_cast<size_t>(t * d + i)] - static_cast<float>(offset.size() ? offset[i] : 0);
}

void make(const std::string& statistics, const std::string& codes_path, int dim, const std::string& out) {
  const StatisticsReader reader{std::filesystem::path(statistics)};
  const CacheCodes codes = read_codes(codes_path);
  bench::FittedPages p;
  p.dim = dim;
  const auto shape = [&](const SideCodes& side) {
    const HeadCode& first = side.layers.begin()->second.front();
    if (!first.options.codebook) throw std::runtime_error(codes_path + ": no codebooks");
    return first.options.codebook->groups.front().size;
  };
  p.size = shape(codes.k);
  std::vector<int> layers;
  for (const auto& [id, heads] : codes.k.layers) layers.push_back(id);
  const LayerShape model = reader.layer(layers.front()).sums.shape();
  const int d = model.dim(Side::K), each = dim / d, wanted = bench::kFittedHeads * each;
  if (dim % d || model.dim(Side::V) != d || (dim != 64 && dim != 128))
    throw std::runtime_error(fmt::format("D is {}: 64 or 128 and a multiple of the model's {}", dim, d));
  const int there = static_cast<int>(layers.size()) * model.kv_heads;
  if (there < wanted) throw std::runtime_error(fmt::format("{} heads, {} are needed", there, wanted));
  p.pages = static_cast<int32_t>(std::min<int64_t>(reader.rows(layers.front()).count() / 64, kMostPages));
  p.allocate();
  const int64_t tokens = int64_t{p.pages} * 64;
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  for (size_t t = 0; t < slots.size(); ++t) slots[t] = static_cast<int64_t>(t);
  for (const Side side : {Side::K, Side::V}) {
    const int s = side == Side::K ? 0 : 1;
    std::vector<float> rows(static_cast<size_t>(tokens * bench::kFittedHeads * dim));
    for (int i = 0; i < wanted; ++i) {
      const int chosen = i * there / wanted, layer = layers[static_cast<size_t>(chosen / model.kv_heads)];
      const HeadCode& code = (side == Side::K ? codes.k : codes.v).of(layer, chosen % model.kv_heads);
      place_words(*code.options.codebook, p, s, i / each, i % each * d);
      place_rows(reader.rows(layer), side, model.kv_heads, chosen % model.kv_heads, d, code.transform, tokens,
                 p, i / each, i % each * d, rows);
    }
    const Status written = write(
        p.format(1), {.round_bf16 = false},
        {.rows = rows.data(), .type = FloatType::f32, .tokens = tokens, .slots = slots.data()},
        {.keys = side == Side::K, .pages = p.bytes.data(), .book = {p.words[s].data(), p.scales[s].data()}});
    if (!written.ok()) throw std::runtime_error(written.what);
  }
  std::FILE* file = std::fopen(out.c_str(), "wb");
  const int32_t head[3] = {p.dim, p.size, p.pages};
  const auto put = [&](const void* from, size_t size, size_t count) {
    return std::fwrite(from, size, count, file);
  };
  if (!file || put(head, sizeof(int32_t), 3) != 3 || !bench::move_fitted_pages(p, put) || std::fclose(file))
    throw std::runtime_error(out + ": cannot be written");
  fmt::print("{}: {} pages of {} heads, D = {}, {}x8, from {} heads of {}\n", out, p.pages,
             bench::kFittedHeads, p.dim, p.size, wanted, codes.name);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) throw std::runtime_error("bench_fitted_pages statistics.h5 codes.safetensors D out");
  make(argv[1], argv[2], std::atoi(argv[3]), argv[4]);
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 2;
}
