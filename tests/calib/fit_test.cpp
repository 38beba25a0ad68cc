#include "libcalib/fit.h"

#include "formats/error.h"
#include "libcalib/composition.h"
#include "libcalib/hadamard.h"
#include "libcalib/methods/support.h"
#include "libcalib/targets.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

const LayerShape kShape = test::shape_of(0, 4, 2, 16, 12);

std::map<int, LayerStatistics> layers(int64_t tokens = 200) {
  std::map<int, LayerStatistics> all;
  for (const int id : {3, 7, 11}) {
    LayerShape shape = kShape;
    shape.layer = id;
    all[id] = test::statistics_of(shape, tokens, static_cast<uint64_t>(100 * id));
  }
  return all;
}
struct Options {
  std::string target_k = "qqt", target_v = "sst", composition = "r_h_pbr";
  bool per_head = false, allow_undersampled = false;
  int threads = 1;
};
Options options(const std::string& k = "qqt", const std::string& v = "sst") {
  Options o;
  o.target_k = k;
  o.target_v = v;
  return o;
}
struct Rotations {
  RotationSet k, v;
  std::vector<FitCheck> checks;
  std::vector<std::string> warnings;
};
Rotations fit(const std::map<int, LayerStatistics>& all, const Options& o) {
  const auto side = [&](const std::string& target) {
    return fmt::format("oscar:target={}:composition={}:granularity={}", target, o.composition,
                       o.per_head ? "head" : "layer");
  };
  const Method method =
      o.target_k.empty() ? parse_method("hadamard") : parse_method(side(o.target_k) + "/" + side(o.target_v));
  FitResult result =
      oscar::fit({all, {}}, method, {.allow_undersampled = o.allow_undersampled, .threads = o.threads, .progress = {}});
  return {rotation_set(result.codes.k), rotation_set(result.codes.v), result.checks, result.warnings};
}
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Fit, EveryTargetCompositionAndGranularity) {
  const auto all = layers();
  for (const auto& target : target_table()) {
    for (const auto& composition : composition_table()) {
      for (const bool per_head : {false, true}) {
        Options o = options();
        (target.side == Side::K ? o.target_k : o.target_v) = target.name;
        o.composition = composition.name;
        o.per_head = per_head;
        const Rotations result = fit(all, o);
        const RotationSet& set = target.side == Side::K ? result.k : result.v;
        EXPECT_NO_THROW(check(set, "fit"));
        EXPECT_EQ(set.layers.size(), 3u);
        EXPECT_EQ(set.layers.at(7).rotation.size(), per_head ? 2u : 1u);
        EXPECT_EQ(set.composition, composition.name);
        if (composition.product.find('U') == std::string_view::npos) continue;
        const Matrix a = target.of_head(all.at(7).sums, 0), b = target.of_head(all.at(7).sums, 1);
        const Matrix expected = per_head ? b : Matrix((a + b) / 2);
        const size_t head = per_head ? 1 : 0;
        const Matrix c = recover_covariance(composition, set.layers.at(7).rotation[head],
                                            set.layers.at(7).eigenvalues[head]);
        EXPECT_LT((c - expected).norm() / expected.norm(), 1e-12) << target.name << ' ' << composition.name;
      }
    }
  }
}

TEST(Fit, ChecksSayWhatHolds) {
  const Rotations result = fit(layers(), options());
  ASSERT_EQ(result.checks.size(), 6u);
  for (const auto& check : result.checks) {
    EXPECT_LT(check.orthogonality, 1e-12);
    EXPECT_LT(check.residual, 1e-12);
    EXPECT_EQ(check.rank, check.side == Side::K ? 16 : 12);
    EXPECT_NEAR(check.lemma1, 1, 1e-12);
    EXPECT_GT(check.condition, 1);
    EXPECT_GT(check.shared_loss, 0);
    EXPECT_LT(check.shared_loss, 1);
  }
}

TEST(Fit, ThreadsDoNotChangeTheResult) {
  Options one = options(), four = options();
  four.threads = 4;
  const auto all = layers();
  const Rotations a = fit(all, one), b = fit(all, four);
  for (const int id : {3, 7, 11}) EXPECT_EQ(a.k.layers.at(id).rotation[0], b.k.layers.at(id).rotation[0]);
  EXPECT_EQ(a.warnings, b.warnings);
}

TEST(Fit, Objectives) {
  EXPECT_EQ(objective_name("qqt", "r_h_pbr", false), "qqt_r_h_pbr");
  EXPECT_EQ(objective_name("sst-proxy", "br", true), "sst_br_perhead");
  EXPECT_EQ(objective_name("", "br", false), "hadamard");
}

TEST(Fit, HadamardNeedsOnlyShapes) {
  std::map<int, LayerStatistics> all;
  all[0].sums = LayerSums(kShape);
  const Rotations result = fit(all, options("", ""));
  EXPECT_EQ(result.k.objective, "hadamard");
  EXPECT_EQ(result.k.layers.at(0).rotation[0], hadamard(16));
  EXPECT_EQ(result.v.layers.at(0).rotation[0], hadamard(12));
  EXPECT_EQ(result.k.layers.at(0).eigenvalues[0], Vector(Vector::Ones(16)));
}

TEST(Fit, FewTokensAreFoundWanting) {
  const auto few = layers(63);
  EXPECT_THROW(fit(few, options()), Wanting);
  EXPECT_NE(message([&] {
              fit(few, options());
            }).find("layer 3, k (qqt): 63 tokens per head, expected at least 4 D = 64"),
            std::string::npos);
  Options allowed = options();
  allowed.allow_undersampled = true;
  EXPECT_NO_THROW(fit(few, allowed));
  EXPECT_NO_THROW(fit(layers(64), options()));
}

TEST(Fit, NamesTheLayerThatIsEmptyOrBroken) {
  auto all = layers();
  all[7].sums = LayerSums(all[7].sums.shape());
  EXPECT_NE(message([&] { fit(all, options()); }).find("layer 7, k (qqt): no tokens"), std::string::npos);
  EXPECT_THROW(fit(all, options()), std::runtime_error);
  all[7].sums.tokens = 1000;
  EXPECT_NE(message([&] { fit(all, options()); }).find("layer 7, k (qqt): every row is zero"),
            std::string::npos);
  all = layers();
  all[11].sums.matrix(Sum::oo, 1)(2, 3) = NAN;
  EXPECT_NE(message([&] { fit(all, options()); }).find("layer 11"), std::string::npos);
  EXPECT_THROW(fit({}, options()), std::invalid_argument);
}

TEST(Fit, RefusesTargetsThatTheInputCannotGive) {
  const auto all = layers();
  EXPECT_THROW(fit(all, options("sst", "sst")), std::invalid_argument);
  EXPECT_THROW(fit(all, options("qqt", "qqt")), std::invalid_argument);
  EXPECT_THROW(fit(all, options("nonsense", "sst")), std::invalid_argument);
  auto raw = layers();
  for (auto& [id, layer] : raw) {
    for (const Sum sum : {Sum::oo, Sum::qq_mass, Sum::mass}) std::ranges::fill(layer.sums.values(sum), 0);
    layer.sums.score_queries = 0;
  }
  EXPECT_NE(message([&] { fit(raw, options()); }).find("use sst-proxy"), std::string::npos);
  EXPECT_NE(message([&] { fit(raw, options("qqt-mass", "sst-proxy")); }).find("use qqt"), std::string::npos);
}

TEST(Fit, WarnsOfConstantAndDeficientStatistics) {
  auto all = layers();
  const Vector x = Vector::LinSpaced(16, 1, 2);
  for (int h = 0; h < 2; ++h) all[3].sums.matrix(Sum::qq, h) = x * x.transpose();
  for (int h = 0; h < 2; ++h)
    all[7].sums.matrix(Sum::qq, h) = Matrix(Vector::LinSpaced(16, 0, 3).cwiseMax(1).asDiagonal()) -
                                     Matrix(Vector::Unit(16, 2).asDiagonal());
  const Rotations result = fit(all, options());
  ASSERT_GE(result.warnings.size(), 2u);
  EXPECT_NE(result.warnings[0].find("layer 3, k (qqt): constant statistics"), std::string::npos)
      << result.warnings[0];
  EXPECT_NE(result.warnings[1].find("layer 7, k (qqt): rank 15 of 16"), std::string::npos)
      << result.warnings[1];
}

TEST(Fit, SharedRotationLoss) {
  const Matrix c = Matrix(Vector::LinSpaced(8, 1, 8).asDiagonal());
  EXPECT_NEAR(shared_rotation_loss({c, c, c}), 0, 1e-12);
  EXPECT_EQ(shared_rotation_loss({c}), 0);
  // Four heads of disjoint pairs: the shared pair keeps one head's all and nothing of the others'.
  std::vector<Matrix> disjoint;
  for (int h = 0; h < 4; ++h) {
    Vector values = Vector::Zero(8);
    values.segment(2 * h, 2).setConstant(h == 0 ? 1.01 : 1.0);
    disjoint.push_back(Matrix(values.asDiagonal()));
  }
  EXPECT_NEAR(shared_rotation_loss(disjoint), 0.75, 1e-12);
}

TEST(Fit, SuggestsOnePerHeadWhenHeadsDiffer) {
  auto all = layers();
  for (auto& [id, layer] : all) {
    for (int h = 0; h < 2; ++h) {
      Vector values = Vector::Constant(16, 1e-3);
      values.segment(4 * h, 4).setConstant(1);
      layer.sums.matrix(Sum::qq, h) = Matrix(values.asDiagonal());
    }
  }
  const Rotations result = fit(all, options());
  EXPECT_TRUE(std::ranges::any_of(
      result.warnings, [](const auto& w) { return w.starts_with("k: one rotation a layer keeps"); }));
}

}  // namespace
}  // namespace oscar
