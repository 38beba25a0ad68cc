// Statistics that no healthy dump has: dead heads, metrics of low rank, rows out of range. A fit gives codes that its own
// readers take, or one sentence.
#include <cmath>

#include "formats/error.h"
#include "formats/hdf5.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/artifacts/statistics_file.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

FitInput input_with(const std::function<void(LayerStatistics&)>& change) {
  FitInput input{method_layers(), {}};
  change(input.layers.at(5));
  return input;
}
void clear(LayerStatistics& layer, std::initializer_list<Sum> sums, int head) {
  for (const Sum sum : sums) {
    const auto values = layer.sums.values(sum);
    const auto size = static_cast<size_t>(layer.sums.size_per_head(sum));
    std::ranges::fill(values.subspan(static_cast<size_t>(head) * size, size), 0);
  }
}
void no_keys(LayerStatistics& layer) {
  clear(layer, {Sum::kk, Sum::k_sum, Sum::uk, Sum::ukk, Sum::xk, Sum::xkk}, 0);
  const auto heads = static_cast<size_t>(layer.sums.shape().kv_heads),
             dim = static_cast<size_t>(layer.sums.shape().dim_k);
  for (size_t r = 0; r < layer.rows.k.size(); r += heads * dim)
    std::fill_n(layer.rows.k.begin() + static_cast<std::ptrdiff_t>(r), dim, 0.0f);
}
void no_queries(LayerStatistics& layer) {
  clear(layer, {Sum::qq, Sum::qq_mass, Sum::qq_out}, 0);
}
// Writes what was fitted and reads it as the other programs do.
void expect_readable(const FitInput& input, const std::string& name) {
  const TempDir folder;
  FitRecord record;
  record.method = parse_method(name);
  record.result = fit(input, record.method, {});
  write_fit_directory(folder / "out", record, {RotationFormat::Pt, RotationFormat::SafeTensors});
  if (has_codes(folder / "out")) {
    EXPECT_NO_THROW(read_codes(folder / "out" / kCodesFile)) << name;
  }
  if (has_rotations(folder / "out")) {
    EXPECT_NO_THROW(read_rotation_directory(folder / "out")) << name;
  }
}

TEST(Degenerate, DeadHeadsGiveFilesThatCanBeRead) {
  for (const auto& dead : {no_keys, no_queries}) {
    const FitInput input = input_with(dead);
    for (const char* name : {"oscar", "perhead", "oscar-dc", "stretch", "flat", "outaware", "nova",
                             "nova-scalar", "awvq", "awsq", "budget"})
      expect_readable(input, name);
  }
}

// What readers refuse is not written: their limit on map times inverse is of float32.
TEST(Degenerate, MetricsOfLowRankGiveFilesThatCanBeRead) {
  const auto input = input_with([](LayerStatistics& layer) {
    const auto dim = layer.sums.shape().dim_v;
    const Matrix one = Vector::Ones(dim) * Vector::Ones(dim).transpose();
    for (Matrix& g : layer.value_metric) g = one;
    for (int h = 0; h < layer.sums.shape().kv_heads; ++h) layer.sums.matrix(Sum::qq, h) = one * 100;
  });
  for (const char* name : {"outaware", "flat", "stretch", "nova", "awvq"}) expect_readable(input, name);
}

TEST(Degenerate, MomentsBeyondFloat32AreASentence) {
  const auto input = input_with([](LayerStatistics& layer) {
    for (double& x : layer.sums.values(Sum::kk)) x *= 1e40;
  });
  const auto text = message_of<std::runtime_error>([&] { fit(input, parse_method("ktk_vtv"), {}); });
  EXPECT_NE(text.find("layer 5, k"), std::string::npos) << text;
  EXPECT_NE(text.find("do not fit the float32 of a file"), std::string::npos) << text;
}

// The search for codewords is told to get none of these, and would read beyond its codebook.
TEST(Degenerate, RowsAndImportancesThatNoCodeCanHoldAreNamed) {
  const std::pair<const char*, std::function<void(LayerStatistics&)>> cases[] = {
      {"the sampled rows of k come to", [](auto& layer) { layer.rows.k[0] = INFINITY; }},
      {"the sampled rows of k come to", [](auto& layer) { layer.rows.k[0] = NAN; }},
      {"the sampled rows of k come to", [](auto& layer) { layer.rows.k[0] = 1e30f; }},
      {"the importance of sampled row 0 is inf",
       [](auto& layer) { layer.rows.u[0] = layer.rows.x[0] = INFINITY; }},
      {"the importance of sampled row 0 is nan",
       [](auto& layer) { layer.rows.u[0] = layer.rows.x[0] = NAN; }}};
  for (const auto& [says, change] : cases) {
    for (const char* name : {"kvquant-nuq", "awvq", "awsq", "budget"}) {
      const auto text =
          message_of<std::runtime_error>([&] { fit(input_with(change), parse_method(name), {}); });
      EXPECT_NE(text.find(says), std::string::npos) << name << ": " << text;
      EXPECT_NE(text.find("layer 5, head 0"), std::string::npos) << name << ": " << text;
    }
  }
}

TEST(Degenerate, NormsAreKeptWithinFp16) {
  const auto input = input_with([](LayerStatistics& layer) {
    for (float& x : layer.rows.v) x *= 1e6f;
  });
  const auto codes = fit(input, parse_method("kvquant-nuq"), {}).codes;
  for (const auto& head : codes.v.layers.at(5)) {
    for (const auto& group : head.options.codebook->groups) {
      for (const float word : group.words) ASSERT_TRUE(std::isfinite(word));
    }
  }
}

TEST(Degenerate, WordsAreKeptWithinFp16) {
  const auto input = input_with([](LayerStatistics& layer) {
    for (float& x : layer.rows.k) x *= 1e6f;
  });
  for (const char* stored : {"fp16", "e4m3", "e5m2"}) {
    const auto codes = fit(input, parse_method(std::string("kvquant-nuq:stored=") + stored), {}).codes;
    for (const auto& group : codes.k.of(5, 0).options.codebook->groups) {
      for (const float word : group.words) ASSERT_TRUE(std::isfinite(word)) << stored;
    }
  }
}

TEST(Degenerate, TheVectorCodecRefusesRowsOutOfRange) {
  const auto codes = fitted("awvq").codes;
  const HeadCode& head = codes.k.of(5, 0);
  std::vector<float> rows(2 * 32, 0.5f);
  EXPECT_NO_THROW(head.codec->encode(rows.data(), 2, 32, head.options));
  for (const float bad : {INFINITY, NAN, 1e18f}) {
    rows[33] = bad;
    const auto text =
        message_of<std::runtime_error>([&] { head.codec->encode(rows.data(), 2, 32, head.options); });
    EXPECT_NE(text.find("row 1, channel 1"), std::string::npos) << text;
  }
}

TEST(Degenerate, OneDeadHeadIsNotTakenForAnOldFile) {
  const auto attempt = [](std::initializer_list<Sum> sums, const char* method) {
    const auto input = input_with([&](LayerStatistics& layer) { clear(layer, sums, 1); });
    return message_of<std::invalid_argument>([&] { fit(input, parse_method(method), {}); });
  };
  const auto out = attempt({Sum::out, Sum::qq_out}, "awvq"),
             mass = attempt({Sum::mass, Sum::qq_mass}, "oscar-mass");
  EXPECT_NE(out.find("layer 5, head 1: target qqt-out: no error of this head's keys moves its output"),
            std::string::npos)
      << out;
  EXPECT_NE(mass.find("layer 5, head 1: target qqt-mass: no query of this head has history mass"),
            std::string::npos)
      << mass;
  // A head whose values are all zero has the second moment zero, and no less.
  const auto dead = input_with([](LayerStatistics& layer) {
    clear(layer, {Sum::vv, Sum::oo, Sum::vv_proxy}, 1);
  });
  for (const char* method : {"oscar", "perhead", "ktk_vtv"})
    EXPECT_NO_THROW(fit(dead, parse_method(method), {})) << method;
}

// Layers may differ in head dim: a refusal says which one it is about.
TEST(Degenerate, ARefusedHeadDimNamesItsLayer) {
  FitInput input{method_layers(), {}};
  input.layers[7] = full_statistics(shape_of(7, 2, 1, 30, 30), kTokens, 7);
  for (const auto& [method, says] : {std::pair{"oscar", "layer 7, k (qqt): Hadamard matrix of order 30"},
                                     {"awvq", "layer 7, k (qqt-out): shape 4x8"},
                                     {"saw-int4", "layer 7, k (saw-int4): head dim 30"}}) {
    const auto text = message_of<std::invalid_argument>([&] { fit(input, parse_method(method), {}); });
    EXPECT_NE(text.find(says), std::string::npos) << text;
  }
}

// Attributes of a layer that its datasets, or anything, contradict. The sizes are refused before memory is taken for them.
TEST(Degenerate, ALayerThatIsNotWhatItSaysIsRefused) {
  const TempDir dir;
  const LayerShape shape = method_shapes()[0];  // layer 2
  const auto refused = [&](const std::function<void(LayerShape&)>& lie, const std::string& says) {
    {
      LayerShape claimed = shape;
      lie(claimed);
      const LayerStatistics& layer = method_layers().at(2);
      Hdf5Writer file(dir / "a.h5");
      const std::string at = "/layers/0002";
      for (const auto& [name, value] : {std::pair{"layer", int64_t{claimed.layer}},
                                        {"q_heads", claimed.q_heads},
                                        {"kv_heads", claimed.kv_heads},
                                        {"dim_k", claimed.dim_k},
                                        {"dim_v", claimed.dim_v},
                                        {"sliding_window", claimed.sliding_window},
                                        {"tokens", 1},
                                        {"score_queries", 1},
                                        {"score_tokens", 1}})
        file.attribute(at, name, value);
      file.attribute(at, "scale", claimed.scale);
      for (const auto& sum : sum_table()) {
        const auto values = layer.sums.values(sum.sum);
        file.dataset(
            at + "/" + std::string(sum.name),
            make_tensor({int64_t{shape.kv_heads}, static_cast<int64_t>(values.size()) / shape.kv_heads},
                        std::vector<double>(values.begin(), values.end())));
      }
      for (const char* name : {"layers_total", "tokens", "window_sink", "window_recent", "has_scores"})
        file.attribute("/", name, int64_t{1});
      file.attribute("/", "schema", std::string("oscar-stats/1"));
      file.close();
    }
    try {
      StatisticsFile(dir / "a.h5").layer(2);
      ADD_FAILURE() << says;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused([](LayerShape& s) { s.layer = 3; }, "whose place is /layers/0003");
  refused([](LayerShape& s) { s.q_heads = 3; }, "a multiple of the KV heads, found 3 and 2");
  refused([](LayerShape& s) { s.scale = 0; }, "a scale above 0");
  refused([](LayerShape& s) { s.scale = NAN; }, "a scale above 0");
  refused([](LayerShape& s) { s.sliding_window = -1; }, "sliding window of at least 0");
  refused([](LayerShape& s) { s.q_heads = s.kv_heads = s.dim_k = s.dim_v = 1 << 24; },
          "/qq: expected shape [16777216, 16777216, 16777216]");
}

}  // namespace
}  // namespace oscar::test
