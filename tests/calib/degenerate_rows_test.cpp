// Rows that no healthy head has: what a fit to them writes is what verify measures, or the fit says why not.
#include <cmath>

#include "formats/error.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/verify.h"
#include "libcalib/verify_rows.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

constexpr int kDim = 32;
constexpr int64_t kProbe = 96;
constexpr Windows kWindows{.sink = 8, .recent = 16};
const LayerShape kShape = shape_of(3, 4, 2, kDim, kDim);

using Change = std::function<void(float* row, int64_t token)>;
// Every row of KV head 0, or of the query heads that read it.
void of_head(std::vector<float>& rows, int heads, const Change& change) {
  const auto tokens = static_cast<int64_t>(rows.size()) / (heads * kDim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads / 2; ++h) change(rows.data() + (t * heads + h) * kDim, t);
  }
}
void queries(Rows& r, const Change& change) {
  of_head(r.q, kShape.q_heads, change);
}
void keys(Rows& r, const Change& change) {
  of_head(r.k, kShape.kv_heads, change);
}
void values(Rows& r, const Change& change) {
  of_head(r.v, kShape.kv_heads, change);
}
void outputs(Rows& r, const Change& change) {
  of_head(r.o, kShape.q_heads, change);
}  // the metric of values

Change times(double factor) {
  return [=](float* x, int64_t) {
    for (int i = 0; i < kDim; ++i) x[i] *= static_cast<float>(factor);
  };
}
Change on_one_line() {
  return [](float* x, int64_t t) {
    for (int i = 0; i < kDim; ++i)
      x[i] = std::sin(static_cast<float>(i + 1)) * (1 + 0.5f * std::sin(static_cast<float>(t)));
  };
}
Change without(int first, int last) {
  return [=](float* x, int64_t) { std::fill(x + first, x + last, 0.0f); };
}
// Channels from 10^-decades to 10^decades.
Change spread(double decades) {
  return [=](float* x, int64_t) {
    for (int i = 0; i < kDim; ++i)
      x[i] *= static_cast<float>(std::pow(10, decades * (2.0 * i / (kDim - 1) - 1)));
  };
}

// A file of a layer with such rows and, as a probe, the last of them.
struct Sample {
  explicit Sample(const std::function<void(Rows&)>& change) {
    Rows rows = rows_of(kShape, kTokens + kProbe, 42);
    change(rows);
    Probe probe{.tokens = kProbe, .q = {}, .k = {}, .v = {}};
    const auto split = [](std::vector<float>& all, std::vector<float>* last) {
      const auto at = all.begin() + static_cast<std::ptrdiff_t>(all.size() / (kTokens + kProbe) * kTokens);
      if (last) last->assign(at, all.end());
      all.erase(at, all.end());
    };
    split(rows.q, &probe.q), split(rows.k, &probe.k), split(rows.v, &probe.v), split(rows.o, nullptr);
    rows.tokens = kTokens;
    input.layers[kShape.layer] = full_statistics(kShape, rows, 42);
    StatisticsWriter writer(folder / "stats.h5", DType::F32);
    writer.layer(input.layers[kShape.layer], {probe});
    StatisticsHeader header;
    header.provenance.layers_total = 4;
    header.provenance.tokens = kTokens;
    header.windows = kWindows;
    header.has_scores = true;
    header.layers = {kShape};
    header.probe_lengths = {kProbe};
    writer.finish(header);
  }
  // "" where verify measures what the fit wrote; else what the fit said in place of writing.
  std::string refusal(const std::string& name) const {
    FitRecord record;
    record.method = parse_method(name);
    try {
      record.result = fit(input, record.method, {});
    } catch (const std::exception& error) {
      return error.what();
    }
    const fs::path out = folder / name;
    write_fit_directory(out, record, {RotationFormat::Pt});
    const StatisticsReader statistics(folder / "stats.h5");
    CacheCodes codes;
    if (has_codes(out)) {
      codes = read_codes(out / kCodesFile);
    } else {
      const auto [k, v] = read_rotation_directory(out);
      codes = ScalarRows{{kShape}, &find_codec("sglang-prefill")}.row(name, &k, &v, 0.96, 0.92);
    }
    verify(statistics, {codes},
           {.windows = kWindows, .first_query = 24, .probes = {0}, .layers = {}, .device = {}}, {});
    return "";
  }

  TempDir folder;
  FitInput input;
};

TEST(DegenerateRows, WhatIsFittedCanBeMeasured) {
  const std::pair<const char*, std::function<void(Rows&)>> cases[] = {
      {"healthy", [](Rows&) {}},
      {"keys of zero", [](Rows& r) { keys(r, times(0)); }},
      {"queries of zero", [](Rows& r) { queries(r, times(0)); }},
      {"values of zero", [](Rows& r) { values(r, times(0)); }},
      {"tiny", [](Rows& r) { queries(r, times(1e-15)), keys(r, times(1e-15)), values(r, times(1e-30)); }},
      {"huge", [](Rows& r) { queries(r, times(1e8)), keys(r, times(1e8)), values(r, times(1e12)); }},
      {"on one line",
       [](Rows& r) { queries(r, on_one_line()), keys(r, on_one_line()), values(r, on_one_line()); }},
      {"all on one line",
       [](Rows& r) {
         queries(r, on_one_line()), keys(r, on_one_line()), values(r, on_one_line()),
             outputs(r, on_one_line());
       }},
      {"queries see no key", [](Rows& r) { queries(r, without(16, 32)), keys(r, without(0, 16)); }},
      {"keys against queries, 3", [](Rows& r) { queries(r, spread(3)), keys(r, spread(-3)); }},
      {"keys against queries, 6", [](Rows& r) { queries(r, spread(6)), keys(r, spread(-6)); }},
      {"metric of values", [](Rows& r) { outputs(r, spread(6)); }},
  };
  for (const auto& [what, change] : cases) {
    const Sample sample(change);
    int measured = 0;
    for (const auto& method : method_table()) {
      SCOPED_TRACE(std::string(what) + ", " + std::string(method.name));
      std::string refusal;
      ASSERT_NO_THROW(refusal = sample.refusal(std::string(method.name)));
      measured += refusal.empty();
      if (refusal.empty()) continue;
      EXPECT_TRUE(refusal.starts_with("layer 3, ")) << refusal;
      EXPECT_NE(refusal.find("head 0"), std::string::npos) << refusal;
    }
    EXPECT_GE(measured, 4) << what << ": methods that map nothing measure any rows";
  }
}

TEST(DegenerateRows, AFitSaysWhichHeadFloat32CannotMap) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const Sample keys_against([](Rows& r) { queries(r, spread(6)), keys(r, spread(-6)); });
  says(keys_against.refusal("oscar"), "layer 3, k, head 0 (oscar): float32 moves the logits by ");
  says(keys_against.refusal("flat"), "take a method that mixes none, such as naive or kivi");
  EXPECT_EQ(keys_against.refusal("kivi"), "");
  const Sample line([](Rows& r) { values(r, on_one_line()), outputs(r, on_one_line()); });
  says(line.refusal("outaware"), "layer 3, v, head 0 (outaware): vRR^-1 = v fails by ");
  says(line.refusal("outaware"), "take a method whose map is a rotation");
  EXPECT_EQ(line.refusal("oscar"), "");
}

TEST(DegenerateRows, AHeadThatSeesNothingIsNotTakenForAnOldFile) {
  const Sample blind([](Rows& r) { queries(r, without(16, 32)), keys(r, without(0, 16)); });
  EXPECT_NE(blind.refusal("oscar-proxy")
                .find("layer 3, head 0: target sst-proxy: its queries see none of its keys"),
            std::string::npos)
      << blind.refusal("oscar-proxy");
}

// Rows that cancel to the last bit lose nothing that a softmax sees.
TEST(DegenerateRows, LogitsOfZeroAreNoFaultOfARotation) {
  const Sample blind([](Rows& r) { queries(r, without(16, 32)), keys(r, without(0, 16)); });
  for (const char* method : {"oscar", "hadamard", "turboquant", "oscar-dc"})
    EXPECT_EQ(blind.refusal(method), "") << method;
}

}  // namespace
}  // namespace oscar::test
