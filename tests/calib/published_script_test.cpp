// What the published fit script makes of a raw dump, and what we make of it.
#include <fmt/format.h>

#include "formats/safetensors.h"
#include "libcalib/artifacts/raw_dump.h"
#include "libcalib/compare.h"
#include "libcalib/composition.h"
#include "libcalib/fit.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

constexpr int kLayers[] = {3, 7};
constexpr int64_t kChunks[] = {0, 2, 10};
const LayerShape kShape = test::shape_of(0, 4, 2, 16, 16);

void write_dump(const SafeTensors& file, const std::filesystem::path& directory) {
  RawDumpWriter writer(directory, DType::BF16);
  for (const int layer : kLayers) {
    for (const int64_t chunk : kChunks) {
      const auto rows = [&](const char* name) {
        return file.tensors.at(fmt::format("dump.{}.{}.{}", layer, name, chunk));
      };
      writer.chunk(layer, chunk, kShape, rows("q").floats().data(), rows("k").floats().data(),
                   rows("v").floats().data(), rows("k").shape[0]);
    }
  }
}

RotationSet published(const SafeTensors& file, const RotationSet& like, const std::string& stem) {
  RotationSet set = like;
  set.layers.clear();
  for (const int layer : kLayers) {
    const auto r = file.tensors.at(fmt::format("{}.{}.rotation", stem, layer)).doubles();
    const auto values = file.tensors.at(fmt::format("{}.{}.eigenvalues", stem, layer)).doubles();
    set.layers[layer] = {{ConstMatrixMap(r.data(), 16, 16)}, {ConstVectorMap(values.data(), 16)}};
  }
  return set;
}

TEST(PublishedScript, EveryCompositionIsTheSame) {
  const auto file = read_safetensors(test::golden("published_fit.safetensors"));
  const test::TempDir dir;
  write_dump(file, dir.path());
  const auto layers = read_raw_layers(open_raw_dump(dir.path()), 2);
  for (const auto& composition : composition_table()) {
    const Method method = parse_method(fmt::format("oscar-proxy:composition={}", composition.name));
    const FitResult result = fit({layers, {}}, method, {});
    const RotationSet k = rotation_set(result.codes.k), v = rotation_set(result.codes.v);
    for (const RotationSet* set : {&k, &v}) {
      const std::string stem = fmt::format("{}_rotation_{}", side_name(set->side), set->objective);
      ASSERT_TRUE(file.tensors.contains(stem + ".3.rotation")) << "published file names: " << stem;
      const auto comparison = compare(published(file, *set, stem), *set);
      EXPECT_TRUE(comparison.equal(1e-6)) << stem;
      for (const auto& layer : comparison.layers) EXPECT_LT(layer.rotation, 1e-5) << stem;
    }
  }
}

}  // namespace
}  // namespace oscar
