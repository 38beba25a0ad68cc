// `even`: a share of the importance that all rows of the history have alike.
#include <numeric>

#include "libcalib/methods/vector_code.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

const LayerStatistics& layer() {
  return method_layers().at(2);
}
TrainingRows rows_with(const LayerStatistics& layer, double even) {
  return training_rows(layer, Side::K, 0, {}, Importance::Output, 0, even);
}
double sum(const std::vector<float>& weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

TEST(EvenShare, MovesWeightsToTheirMeanAndKeepsTheirSum) {
  const TrainingRows none = rows_with(layer(), 0), half = rows_with(layer(), 0.5),
                     all = rows_with(layer(), 1);
  const double mean = sum(none.weights) / static_cast<double>(none.count);
  for (size_t i = 0; i < none.weights.size(); ++i) {
    EXPECT_NEAR(half.weights[i], 0.5 * none.weights[i] + 0.5 * mean, 1e-5 * mean);
    EXPECT_NEAR(all.weights[i], mean, 1e-5 * mean);
  }
  EXPECT_NEAR(sum(half.weights), sum(none.weights), 1e-5 * sum(none.weights));
  EXPECT_EQ(half.rows, none.rows);
}

// Rows of the exact windows are read from no code: they count for nothing, whatever the share.
TEST(EvenShare, LeavesOutRowsThatNoQueryReads) {
  LayerStatistics some = layer();
  const auto heads = static_cast<size_t>(some.sums.shape().kv_heads);
  for (size_t t = 0; t < 64; ++t) some.rows.x[t * heads] = 0;
  EXPECT_EQ(rows_with(some, 0.5).count, kTokens - 64);
  const float far = 1e3F;
  LayerStatistics outliers = some;
  for (size_t i = 0; i < 32; ++i) outliers.rows.k[i] = far;  // of the first token and head
  MethodOptions options = parse_method("awvq:even=0.5").k.options;
  const Klt a = attention_klt(some, Side::K, 0, options, options.partition, 4, "a"),
            b = attention_klt(outliers, Side::K, 0, options, options.partition, 4, "b");
  EXPECT_EQ(a.transform.forward, b.transform.forward);
}

// In its own basis, what is trained on has no mean and is uncorrelated, with the variances that are said.
TEST(EvenShare, TheBasisIsOfTheRowsAsTheyAreWeighted) {
  for (const char* even : {"0", "0.3", "1"}) {
    const Method method = parse_method(std::string("awvq:even=") + even);
    for (const Side side : {Side::K, Side::V}) {
      const MethodOptions& options = side == Side::K ? method.k.options : method.v.options;
      const Klt klt = attention_klt(layer(), side, 1, options, options.partition, 4, "test");
      const TrainingRows rows =
          training_rows(layer(), side, 1, klt.transform, options.importance, 0, options.even);
      Vector mean = Vector::Zero(32);
      Matrix moment = Matrix::Zero(32, 32);
      for (int64_t r = 0; r < rows.count; ++r) {
        const Vector row = Eigen::Map<const Eigen::VectorXf>(rows.rows.data() + r * 32, 32).cast<double>();
        mean += rows.weights[static_cast<size_t>(r)] * row;
        moment += rows.weights[static_cast<size_t>(r)] * row * row.transpose();
      }
      mean /= sum(rows.weights);
      moment /= sum(rows.weights);
      const double largest = klt.variances.maxCoeff();
      EXPECT_LT(mean.cwiseAbs().maxCoeff(), 1e-4 * std::sqrt(largest)) << even << side_name(side);
      EXPECT_LT((moment - Matrix(klt.variances.asDiagonal())).cwiseAbs().maxCoeff(), 1e-4 * largest)
          << even << side_name(side);
    }
  }
}

// A few rows hold nearly all of the importance, as in calibration text where a few tokens were looked at:
// codes learn those by heart and serve the others badly, unless these have a share.
TEST(EvenShare, ServesRowsThatAttentionDidNotReach) {
  LayerStatistics some = layer();
  const auto heads = static_cast<size_t>(some.sums.shape().kv_heads);
  for (size_t t = 0; t < 24; ++t) some.rows.x[t * heads * 16] *= 1e5F;
  const auto error = [&](const std::string& method) {
    const FitResult result = fit({{{2, some}}, {}}, parse_method(method + "/naive"), {.progress = {}});
    const HeadCode& code = result.codes.k.of(2, 0);
    return distortion(code, training_rows(some, Side::K, 0, code.transform, Importance::None, 0)).error;
  };
  EXPECT_LT(error("awvq:shape=4x4:even=0.5"), 0.8 * error("awvq:shape=4x4"));
  EXPECT_LT(error("budget:shapes=4x4:even=0.5"), 0.8 * error("budget:shapes=4x4:even=0"));
}

}  // namespace
}  // namespace oscar::test
