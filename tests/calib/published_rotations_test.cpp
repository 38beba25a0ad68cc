// Published rotation files: read, checked, and turned back into the covariance they came from.
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/compare.h"
#include "libcalib/composition.h"
#include "libcalib/eigen_decomposition.h"
#include "libcalib/hadamard.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

void expect_published(const fs::path& folder) {
  const RotationPair pair = read_rotation_directory(folder);
  for (const RotationSet* set : {&pair.k, &pair.v}) {
    EXPECT_NO_THROW(check(*set, folder.string()));
    EXPECT_EQ(set->composition, "r_h_pbr");
    EXPECT_TRUE(compare(*set, *set).equal(0));
    const auto& composition = find_composition(set->composition);
    for (const auto& [id, layer] : set->layers) {
      const Matrix c = recover_covariance(composition, layer.rotation[0], layer.eigenvalues[0]);
      EXPECT_LT((c - c.transpose()).cwiseAbs().maxCoeff(), 1e-12 * c.cwiseAbs().maxCoeff());
      const auto eigen = eigen_decomposition(c, "published");
      EXPECT_GT(eigen.values[0], -1e-5 * eigen.values[eigen.values.size() - 1]) << id;
      EXPECT_LT((eigen.values - layer.eigenvalues[0]).norm() / layer.eigenvalues[0].norm(), 1e-5) << id;
      RotationSet again = *set;
      again.layers = {{id, {{compose(composition, eigen)}, {eigen.values}}}};
      RotationSet one = *set;
      one.layers = {{id, layer}};
      EXPECT_TRUE(compare(one, again).equal(1e-5)) << id;
    }
  }
}
TEST(PublishedRotations, Qwen3) {
  OSCAR_NEED_DATA(folder, "oscar-qwen3-4b-thinking");
  expect_published(folder);
}
TEST(PublishedRotations, HybridWithSparseIds) {
  OSCAR_NEED_DATA(folder, "oscar-qwen3.5-4b/calibrated");
  expect_published(folder);
}
TEST(PublishedRotations, GptOss) {
  OSCAR_NEED_DATA(folder, "novakv-gptoss-20b");
  expect_published(folder);
}
TEST(PublishedRotations, HadamardSharesOneStorage) {
  OSCAR_NEED_DATA(folder, "oscar-qwen3.5-4b/hadamard");
  const auto pair = read_rotation_directory(folder);
  const Matrix expected = hadamard(256).cast<float>().cast<double>();
  for (const auto& [id, layer] : pair.k.layers)
    EXPECT_LT((layer.rotation[0] - expected).cwiseAbs().maxCoeff(), 1e-7) << id;
}

}  // namespace
}  // namespace oscar
