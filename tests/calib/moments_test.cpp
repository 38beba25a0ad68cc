#include "libcalib/moments.h"

#include "tests/calib/sample.h"

namespace oscar {
namespace {

using test::Rows;

const LayerShape kShape = test::shape_of(3, 6, 2, 8, 12);

Vector at(const std::vector<float>& rows, int heads, int dim, int64_t t, int head) {
  return Eigen::Map<const Eigen::VectorXf>(rows.data() + (t * heads + head) * dim, dim).cast<double>();
}
double error(const Matrix& a, const Matrix& b) {
  return (a - b).norm() / std::max(b.norm(), 1e-300);
}

TEST(Moments, TableIsTheDefFile) {
  EXPECT_EQ(sum_table().size(), kSumCount);
  for (size_t i = 0; i < kSumCount; ++i) EXPECT_EQ(static_cast<size_t>(sum_table()[i].sum), i);
}

TEST(Moments, RowsAgainstDouble) {
  const Rows r = test::rows_of(kShape, 301, 1);
  LayerSums sums(kShape);
  sums.add_rows(r.q.data(), r.k.data(), r.v.data(), r.o.data(), r.tokens);
  EXPECT_EQ(sums.tokens, 301);
  for (int h = 0; h < 2; ++h) {
    Matrix qq = Matrix::Zero(8, 8), kk = qq, vv = Matrix::Zero(12, 12), oo = vv;
    Vector k_sum = Vector::Zero(8), v_sum = Vector::Zero(12);
    for (int64_t t = 0; t < r.tokens; ++t) {
      for (int j = 3 * h; j < 3 * h + 3; ++j) {
        const Vector q = at(r.q, 6, 8, t, j), o = at(r.o, 6, 12, t, j);
        qq += q * q.transpose();
        oo += o * o.transpose();
      }
      const Vector k = at(r.k, 2, 8, t, h), v = at(r.v, 2, 12, t, h);
      kk += k * k.transpose();
      vv += v * v.transpose();
      k_sum += k;
      v_sum += v;
    }
    EXPECT_LT(error(sums.matrix(Sum::qq, h), qq), 1e-6);
    EXPECT_LT(error(sums.matrix(Sum::kk, h), kk), 1e-6);
    EXPECT_LT(error(sums.matrix(Sum::vv, h), vv), 1e-6);
    EXPECT_LT(error(sums.matrix(Sum::oo, h), oo), 1e-6);
    EXPECT_LT(error(sums.row(Sum::k_sum, h), k_sum), 1e-6);
    EXPECT_LT(error(sums.row(Sum::v_sum, h), v_sum), 1e-6);
  }
}

TEST(Moments, ProxyAgainstDouble) {
  const Rows r = test::rows_of(kShape, 301, 2);
  LayerSums sums(kShape);
  sums.add_rows(r.q.data(), r.k.data(), r.v.data(), nullptr, r.tokens);
  std::vector<Matrix> sigma;
  for (int h = 0; h < 2; ++h) sigma.push_back(sums.matrix(Sum::qq, h) / (301.0 * 3));
  sums.add_proxy(sigma, r.k.data(), r.v.data(), r.tokens);
  for (int h = 0; h < 2; ++h) {
    Matrix expected = Matrix::Zero(12, 12);
    double weight = 0;
    for (int64_t t = 0; t < r.tokens; ++t) {
      const Vector k = at(r.k, 2, 8, t, h), v = at(r.v, 2, 12, t, h);
      const double c = k.dot(sigma[static_cast<size_t>(h)] * k);
      expected += c * v * v.transpose();
      weight += c;
    }
    EXPECT_LT(error(sums.matrix(Sum::vv_proxy, h), expected), 1e-14);
    EXPECT_NEAR(sums.scalar(Sum::proxy_weight, h) / weight, 1, 1e-14);
  }
}

TEST(Moments, ScoresAgainstDouble) {
  const Rows r = test::rows_of(kShape, 40, 3);
  const std::vector<int32_t> queries{1, 2, 7, 30, 39};
  const auto positive = [](size_t n, uint64_t seed) {
    auto x = test::normal(n, seed);
    for (auto& value : x) value = std::abs(value);
    return x;
  };
  const auto mass = positive(6 * 5, 4), sink = positive(6 * 5, 5), entropy = positive(6 * 5, 6);
  const auto a = positive(6 * 5, 9);
  const auto u32 = positive(2 * 40, 7), w32 = positive(2 * 40, 8), x32 = positive(2 * 40, 10);
  const std::vector<double> u(u32.begin(), u32.end()), w(w32.begin(), w32.end()), x(x32.begin(), x32.end());
  SequenceScores scores{queries,  mass.data(), sink.data(), entropy.data(),
                        u.data(), w.data(),    a.data(),    x.data()};
  LayerSums sums(kShape);
  sums.add_scores(r.q.data(), r.k.data(), r.v.data(), 40, scores);
  EXPECT_EQ(sums.score_queries, 5);
  EXPECT_EQ(sums.score_tokens, 40);
  for (int h = 0; h < 2; ++h) {
    Matrix qq = Matrix::Zero(8, 8), kk = qq, vv = Matrix::Zero(12, 12);
    Matrix qq_out = qq, xkk = qq;
    Vector uk = Vector::Zero(8), wv = Vector::Zero(12), xk = uk;
    double m = 0, s = 0, e = 0, su = 0, sw = 0, sa = 0, sx = 0;
    for (int j = 3 * h; j < 3 * h + 3; ++j) {
      for (size_t i = 0; i < queries.size(); ++i) {
        const size_t n = static_cast<size_t>(j) * queries.size() + i;
        const Vector q = at(r.q, 6, 8, queries[i], j);
        qq += static_cast<double>(mass[n]) * q * q.transpose();
        qq_out += static_cast<double>(a[n]) * q * q.transpose();
        sa += a[n];
        m += mass[n];
        s += sink[n];
        e += entropy[n];
      }
    }
    for (int64_t t = 0; t < 40; ++t) {
      const double ut = u[static_cast<size_t>(h * 40 + t)], wt = w[static_cast<size_t>(h * 40 + t)],
                   xt = x[static_cast<size_t>(h * 40 + t)];
      const Vector k = at(r.k, 2, 8, t, h), v = at(r.v, 2, 12, t, h);
      uk += ut * k;
      kk += ut * k * k.transpose();
      wv += wt * v;
      vv += wt * v * v.transpose();
      xk += xt * k;
      xkk += xt * k * k.transpose();
      sx += xt;
      su += ut;
      sw += wt;
    }
    EXPECT_LT(error(sums.matrix(Sum::qq_mass, h), qq), 1e-6);
    EXPECT_LT(error(sums.matrix(Sum::ukk, h), kk), 1e-6);
    EXPECT_LT(error(sums.matrix(Sum::wvv, h), vv), 1e-6);
    EXPECT_LT(error(sums.row(Sum::uk, h), uk), 1e-6);
    EXPECT_LT(error(sums.row(Sum::wv, h), wv), 1e-6);
    EXPECT_NEAR(sums.scalar(Sum::mass, h), m, 1e-9);
    EXPECT_NEAR(sums.scalar(Sum::sink_mass, h), s, 1e-9);
    EXPECT_NEAR(sums.scalar(Sum::entropy, h), e, 1e-9);
    EXPECT_NEAR(sums.scalar(Sum::u, h), su, 1e-9);
    EXPECT_NEAR(sums.scalar(Sum::w, h), sw, 1e-9);
    EXPECT_NEAR(sums.scalar(Sum::out, h), sa, 1e-9);
    EXPECT_NEAR(sums.scalar(Sum::x, h), sx, 1e-9);
    EXPECT_LT(error(sums.matrix(Sum::qq_out, h), qq_out), 1e-6);
    EXPECT_LT(error(sums.matrix(Sum::xkk, h), xkk), 1e-6);
    EXPECT_LT(error(sums.row(Sum::xk, h), xk), 1e-6);
  }
  const std::vector<int32_t> outside{40};
  scores.queries = outside;
  EXPECT_THROW(sums.add_scores(r.q.data(), r.k.data(), r.v.data(), 40, scores), std::invalid_argument);
}

// Parts of 128 rows and their one pass add the same float32 blocks: the same bits.
TEST(Moments, MergeIsOnePass) {
  const Rows r = test::rows_of(kShape, 384, 4);
  LayerSums whole(kShape), merged(kShape);
  whole.add_rows(r.q.data(), r.k.data(), r.v.data(), r.o.data(), r.tokens);
  for (int64_t first = 0; first < 384; first += 128) {
    LayerSums part(kShape);
    part.add_rows(r.q.data() + first * 48, r.k.data() + first * 16, r.v.data() + first * 24,
                  r.o.data() + first * 72, 128);
    merged.merge(part);
  }
  EXPECT_EQ(merged.tokens, whole.tokens);
  for (const auto& sum : sum_table()) {
    const auto a = whole.values(sum.sum), b = merged.values(sum.sum);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12 * (1 + std::abs(a[i]))) << sum.name;
  }
}

TEST(Moments, MergeRefusesAnotherShape) {
  LayerSums a(kShape), b(test::shape_of(3, 6, 2, 8, 8));
  EXPECT_THROW(a.merge(b), std::invalid_argument);
  EXPECT_THROW(LayerSums(test::shape_of(0, 5, 2, 8, 8)), std::invalid_argument);
}

TEST(Moments, FiniteSeesEverySum) {
  for (const auto& sum : sum_table()) {
    LayerSums sums(kShape);
    EXPECT_TRUE(sums.finite());
    sums.values(sum.sum).back() = NAN;
    EXPECT_FALSE(sums.finite()) << sum.name;
  }
}

}  // namespace
}  // namespace oscar
