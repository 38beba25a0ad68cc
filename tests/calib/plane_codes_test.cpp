// A fit of awsq as bit planes of a cache: what is written there reads back as the codec of the fit says, to
// the bit.
#include "kernels/plane_pages.h"
#include "kernels/write.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

// The two heads of a fit side by side, since pages begin at 64 channels.
struct Joined {
  std::vector<float> rows;  // (n, 64)
  Codebook book;
  int64_t n = 0;
};
Joined joined(const LayerStatistics& layer, Side side, const FitResult& fit, int id) {
  Joined all;
  for (int h = 0; h < 2; ++h) {
    const HeadCode& head = side_of(fit.codes, side).of(id, h);
    const auto rows = coded_rows(layer, side, h, head.transform);
    all.n = std::ssize(rows) / 32;
    all.rows.resize(static_cast<size_t>(all.n) * 64);
    for (int64_t i = 0; i < all.n * 32; ++i) all.rows[i / 32 * 64 + 32 * h + i % 32] = rows[i];
    const auto& groups = head.options.codebook->groups;
    all.book.groups.insert(all.book.groups.end(), groups.begin(), groups.end());
    all.book.norm = head.options.codebook->norm;
  }
  return all;
}

TEST(PlaneCodes, WrittenRowsReadAsTheCodecOfTheFit) {
  for (const char* name : {"awsq:bits=2", "awsq:bits=2.5:norm=1", "awsq:bits=1.5"}) {
    SCOPED_TRACE(name);
    const FitResult fit = fitted(name);
    for (const auto& [id, layer] : method_layers()) {
      for (const Side side : {Side::K, Side::V}) {
        const Joined all = joined(layer, side, fit, id);
        const auto expected = decoded(find_codec("vector"), all.rows, 64,
                                      {.codebook = std::make_shared<const Codebook>(all.book)});
        std::vector<uint8_t> fitted_bits, bits;
        std::vector<float> steps;
        int order[64];
        for (const CodeGroup& group : all.book.groups)
          fitted_bits.push_back(static_cast<uint8_t>(group.bits));
        plane_order(fitted_bits.data(), 64, order);
        for (const int c : order) {
          const CodeGroup& group = all.book.groups[static_cast<size_t>(c)];
          bits.push_back(fitted_bits[static_cast<size_t>(c)]);
          steps.push_back(group.bits == 0 ? 0 : 2 * group.words[group.words.size() / 2]);
        }
        SideFormat format{CodeKind::planes, 1, all.book.norm};
        plane_channels(bits.data(), 1, 64, format.planes);
        const CacheFormat f{CacheLayout::native, 64, 1, 1, format, format};
        const bool keys = side == Side::K;
        std::vector<float> rows(all.rows.size());
        std::vector<int64_t> slots;
        for (int64_t r = 0; r < all.n; ++r) {
          slots.push_back(r);
          for (int c = 0; c < 64; ++c) rows[r * 64 + c] = all.rows[r * 64 + order[c]];
        }
        std::vector<uint8_t> pages(static_cast<size_t>((all.n + 63) / 64 * page_bytes(f)));
        WriteTarget target{.keys = keys, .pages = pages.data()};
        target.levels = {steps.data(), bits.data()};
        const Status s = write(
            f, {.round_bf16 = false},
            {.rows = rows.data(), .type = FloatType::f32, .tokens = all.n, .slots = slots.data()}, target);
        ASSERT_TRUE(s.ok()) << s.what;
        std::vector<float> got(64);
        for (int64_t r = 0; r < all.n; ++r) {
          const uint8_t* block = pages.data() + r / 64 * page_bytes(f) + (keys ? 0 : side_bytes(f, f.k));
          unpack_planes(keys, format, 64, block, target.levels, 0, static_cast<int>(r % 64), 1, got.data());
          for (int c = 0; c < 64; ++c)
            ASSERT_EQ(got[c], expected[r * 64 + order[c]]) << "row " << r << " channel " << order[c];
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscar::test
