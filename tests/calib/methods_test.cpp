// What holds for every method of the table.
#include <omp.h>

#include "formats/error.h"
#include "libcalib/setup.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

std::vector<std::string> specifications() {
  std::vector<std::string> all{"turboquant:qjl=1",     "awvq:norm=1",  "awvq:shape=8x8/awvq:shape=4x6",
                               "oscar:centre=mean",    "awsq:norm=1",  "oscar-dc:granularity=layer",
                               "hadamard:centre=mean", "budget:norm=1"};
  for (const auto& method : method_table()) all.emplace_back(method.name);
  return all;
}

void for_each_head(const FitResult& result,
                   const std::function<void(const LayerStatistics&, Side, int, const HeadCode&)>& work) {
  for (const Side side : {Side::K, Side::V}) {
    for (const auto& [id, layer] : method_layers()) {
      for (int h = 0; h < layer.sums.shape().kv_heads; ++h)
        work(layer, side, h, side_of(result.codes, side).of(id, h));
    }
  }
}

TEST(Methods, EachFitsInvertibleTransformsThatItsCodecTakes) {
  for (const auto& name : specifications()) {
    SCOPED_TRACE(name);
    const FitResult result = fitted(name);
    EXPECT_EQ(result.codes.name, parse_method(name).name);
    EXPECT_EQ(result.checks.size(), 4u);
    for (const Side side : {Side::K, Side::V})
      EXPECT_NO_THROW(check_codes(side_of(result.codes, side), side, method_shapes(), name));
    bool maps = false;
    for_each_head(result, [&](const LayerStatistics&, Side, int, const HeadCode& head) {
      const auto& [forward, inverse, mean] = head.transform;
      maps = maps || inverse.size() > 0;
      EXPECT_TRUE(mean.allFinite());
      if (!forward.size()) return;
      ASSERT_TRUE(forward.allFinite());
      const Matrix back = forward * (inverse.size() ? inverse : Matrix(forward.transpose()));
      EXPECT_LT((back - Matrix::Identity(32, 32)).cwiseAbs().maxCoeff(), 1e-8);
    });
    const auto stores = parse_method(name).k.method->stores;
    const bool rotations = stores.starts_with("rotation") || stores.starts_with("H ");
    EXPECT_FALSE(maps && rotations) << stores;
    EXPECT_TRUE(maps || !stores.starts_with("map")) << stores;
  }
}

TEST(Methods, PackedRowsReadAsTheRuleInDoubleSays) {
  for (const auto& name : specifications()) {
    SCOPED_TRACE(name);
    for_each_head(fitted(name), [](const LayerStatistics& layer, Side side, int h, const HeadCode& head) {
      const auto rows = coded_rows(layer, side, h, head.transform);
      const auto packed = decoded(*head.codec, rows, 32, head.options);
      const auto exact = reference(*head.codec, rows, 32, head.options);
      double largest = 0;
      for (const double x : exact) largest = std::max(largest, std::abs(x));
      int64_t borders = 0;  // of two codes, taken otherwise in double
      for (size_t i = 0; i < packed.size(); ++i)
        borders += !(std::abs(packed[i] - exact[i]) <= 1e-5 * largest);
      EXPECT_LE(borders, static_cast<int64_t>(packed.size() / 500)) << side_name(side) << h;
    });
  }
}

// Levels and codebooks fit the rows that they code, those of the worst rule too (one bit and the sign of the
// rest).
TEST(Methods, CodesAreOfTheRowsThatTheyCode) {
  for (const auto& name : specifications()) {
    for_each_head(fitted(name), [&](const LayerStatistics& layer, Side side, int h, const HeadCode& head) {
      const auto rows = coded_rows(layer, side, h, head.transform);
      EXPECT_LT(relative_error(decoded(*head.codec, rows, 32, head.options), rows), 0.8)
          << name << ' ' << side_name(side) << h;
    });
  }
}

// Bits of a channel, of whole pages of rows of 32 channels.
TEST(Methods, MeasuredBitsAreThoseOfTheDocumentation) {
  struct Bits {
    const char* name;
    double k, v;
  };
  constexpr double kInt2 = 2 + 64.0 / 32, kNorm = 16.0 / 32, kRange = 32.0 / 32;
  const std::vector<Bits> cases{{"awvq", 2, 2},
                                {"awvq:norm=1", 2 + kNorm, 2 + kNorm},
                                {"awvq:shape=4x10/awvq:shape=8x8", 2.5, 1},
                                {"awsq", 2, 2},
                                {"awsq:bits=1.5:norm=1", 1.5 + kNorm, 1.5 + kNorm},
                                {"budget-int2", kInt2, kInt2},
                                {"oscar-dc", kInt2, kInt2},
                                {"oscar", kInt2, kInt2},
                                {"center", kInt2, kInt2},
                                {"stretch", kInt2, kInt2},
                                {"outaware", kInt2, kInt2},
                                {"nova", 2 + kNorm, kInt2},
                                {"nova-scalar", kInt2, kInt2},
                                {"turboquant", 2 + kNorm, 2 + kNorm},
                                {"turboquant:qjl=1", 2 + 2 * kNorm, 2 + kNorm},
                                {"turboquant:bits=4", 4 + kNorm, 4 + kNorm},
                                {"kvquant-nuq", 2, 2 + kNorm},
                                {"kvquant-nuq:bits=3", 3, 3 + kNorm},
                                {"kivi", 2 + 32.0 / 32, 2 + kRange},
                                {"kitty", 2.5 + 32.0 / 128 + 1.0 / 128, 2 + kRange},
                                {"saw-int4", 4 + kRange, 4 + kRange},
                                {"naive", kInt2, kInt2},
                                {"oscar:groups=2", 2 + 2 * 64.0 / 32, 2 + 2 * 64.0 / 32}};
  for (const auto& [name, k, v] : cases) {
    SCOPED_TRACE(name);
    for_each_head(fitted(name), [&](const LayerStatistics& layer, Side side, int h, const HeadCode& head) {
      const auto rows = coded_rows(layer, side, h, head.transform);
      const auto encoded = head.codec->encode(rows.data(), kTokens, 32, head.options);
      EXPECT_DOUBLE_EQ(8.0 * static_cast<double>(encoded->bytes()) / (kTokens * 32), side == Side::K ? k : v);
    });
  }
}

// Rows are stored in whole bytes: what does not fill one is not handed out.
TEST(Methods, AwsqRowsTakeNoMoreThanTheirBits) {
  const auto stored = [](const std::string& bits, double norm) {
    double found = 0;
    const auto result = fitted("awsq:bits=" + bits + (norm > 0 ? ":norm=1" : ""));
    for_each_head(result, [&](const LayerStatistics& layer, Side side, int h, const HeadCode& head) {
      const auto rows = coded_rows(layer, side, h, head.transform);
      const auto encoded = head.codec->encode(rows.data(), kTokens, 32, head.options);
      found = 8.0 * static_cast<double>(encoded->bytes()) / (kTokens * 32) - norm;
      EXPECT_EQ(head.options.codebook->payload_bits(), std::lround(found * 32)) << "no byte half empty";
    });
    return found;
  };
  constexpr double kNorm = 16.0 / 32;
  const std::vector<std::pair<const char*, double>> cases{{"1.7", 1.5}, {"0.25", 0.25},  {"0.49", 0.25},
                                                          {"1", 1},     {"2.999", 2.75}, {"4", 4}};
  for (const auto& [bits, held] : cases) {
    EXPECT_DOUBLE_EQ(stored(bits, 0), held) << bits;
    EXPECT_DOUBLE_EQ(stored(bits, kNorm), held) << bits << ", and a norm beside them";
  }
  for (const char* bits : {"0.125", "0.2499", "0"}) {
    const auto text = message_of<std::invalid_argument>([&] { fitted(std::string("awsq:bits=") + bits); });
    EXPECT_NE(text.find("layer 2, k"), std::string::npos) << text;
    EXPECT_NE(text.find(std::string("bits=") + bits), std::string::npos) << text;
    EXPECT_NE(text.find("the least is 0.25 bits a channel"), std::string::npos) << text;
  }
}
// 1.16 x 200 is 231.99999999999997 in double, and 29 bytes all the same.
TEST(Methods, AwsqHandsOutBytesThatRoundingWouldTake) {
  std::map<int, LayerStatistics> layers;
  layers[2] = full_statistics(shape_of(2, 2, 1, 200, 200), 800, 200);
  const auto codes = fit({layers, {}}, parse_method("awsq:bits=1.16:rows=64"), {}).codes;
  EXPECT_EQ(codes.k.of(2, 0).options.codebook->payload_bits(), 232);
}

// Squared error of a channel under evenly spaced levels, every value at its nearest.
double level_error(const std::vector<float>& rows, int channel, int count, double step) {
  double total = 0;
  for (size_t i = static_cast<size_t>(channel); i < rows.size(); i += 32) {
    const double top = (count - 1) / 2.0,
                 level = std::clamp(std::round(rows[i] / step + top), 0.0, count - 1.0);
    total += std::pow(rows[i] - (level - top) * step, 2);
  }
  return total;
}
// Also where one row holds most of a channel's energy, many sigmas away.
TEST(Methods, AwsqStepsAreThoseOfLeastError) {
  FitInput input{method_layers(), {}};
  for (auto& [id, layer] : input.layers) {
    for (size_t i = 0; i < 2 * 32; ++i) layer.rows.v[100 * 2 * 32 + i] *= 60;
  }
  const FitResult result =
      fit(input, parse_method("awsq:bits=3:importance=none"), {.threads = 1, .progress = {}});
  for (const auto& [id, layer] : input.layers) {
    const HeadCode& head = result.codes.v.of(id, 0);
    const auto rows = coded_rows(layer, Side::V, 0, head.transform);
    for (int c = 0; c < 32; ++c) {
      const CodeGroup& group = head.options.codebook->groups[static_cast<size_t>(c)];
      if (group.bits == 0) continue;
      const int count = 1 << group.bits;
      double largest = 0, best = INFINITY;
      for (size_t i = static_cast<size_t>(c); i < rows.size(); i += 32)
        largest = std::max(largest, std::abs(double{rows[i]}));
      for (int n = 1; n <= 1000; ++n)
        best = std::min(best, level_error(rows, c, count, 2 * largest / (count - 1) * n / 1000));
      EXPECT_LE(level_error(rows, c, count, double{group.words[1]} - group.words[0]), 1.02 * best)
          << "layer " << id << ", channel " << c;
    }
  }
}

TEST(Methods, ThreadsDoNotChangeAByte) {
  const int threads = omp_get_max_threads();
  for (const auto& name : specifications()) {
    omp_set_num_threads(1);
    const FitResult one = fitted(name, 1);
    omp_set_num_threads(3);
    const FitResult four = fitted(name, 4);
    EXPECT_TRUE(bytes_of(one.codes) == bytes_of(four.codes)) << name;
    EXPECT_EQ(one.warnings, four.warnings) << name;
  }
  omp_set_num_threads(threads);
}

// The same layers without something.
FitInput without(unsigned needs) {
  FitInput input{method_layers(), {}};
  for (auto& [id, layer] : input.layers) {
    if (needs & kScores) {
      for (const Sum sum : {Sum::qq_mass, Sum::mass, Sum::u, Sum::uk, Sum::ukk, Sum::w, Sum::wv, Sum::wvv,
                            Sum::qq_out, Sum::out, Sum::x, Sum::xk, Sum::xkk, Sum::entropy, Sum::sink_mass,
                            Sum::stream, Sum::stream_queries})
        std::ranges::fill(layer.sums.values(sum), 0);
      layer.sums.score_queries = layer.sums.score_tokens = 0;
      layer.rows.u.clear(), layer.rows.w.clear(), layer.rows.x.clear();
    }
    if (needs & kRows) layer.rows = {};
    if (needs & kMetric) layer.value_metric.clear();
  }
  return input;
}

TEST(Methods, NeedWhatTheySayAndNothingElse) {
  const std::vector<std::pair<unsigned, const char*>> parts{
      {kScores, "oscar-dump"}, {kRows, "--rows"}, {kMetric, "W_O"}};
  for (const auto& specification : specifications()) {
    const Method method = parse_method(specification);
    for (const auto& [need, hint] : parts) {
      const auto attempt = [&, need = need] { fit(without(need), method, {}); };
      if (!(method.needs() & need)) {
        EXPECT_NO_THROW(attempt()) << method.name << " without " << needs_text(need);
        continue;
      }
      const auto text = message_of<std::invalid_argument>(attempt);
      EXPECT_NE(text.find(hint), std::string::npos)
          << method.name << " without " << needs_text(need) << ": " << text;
      EXPECT_NE(text.find("layer 2"), std::string::npos) << method.name << ": " << text;
    }
    if (method.needs() == kNothing) {
      FitInput shapes;
      for (const auto& shape : method_shapes()) shapes.layers[shape.layer].sums = LayerSums(shape);
      EXPECT_NO_THROW(fit(shapes, method, {})) << method.name;
    }
  }
}

// Every row that importance counts is lost: a sentence, not a NaN.
TEST(Methods, RefuseRowsWithoutImportance) {
  FitInput input{method_layers(), {}};
  for (auto* rows : {&input.layers[5].rows.u, &input.layers[5].rows.w, &input.layers[5].rows.x})
    std::ranges::fill(*rows, 0.0f);
  for (const char* name : {"awvq", "awsq", "kvquant-nuq", "budget"}) {
    const auto text = message_of<std::invalid_argument>([&] { fit(input, parse_method(name), {}); });
    EXPECT_NE(text.find("layer 5, head 0: no sampled row of k has any importance"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace oscar::test
