#include "libcalib/artifacts/rotation_file.h"

#include <Eigen/Eigenvalues>

#include "formats/pt.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "libcalib/artifacts/convert.h"
#include "libcalib/artifacts/objective.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/compare.h"
#include "libcalib/composition.h"
#include "libcalib/eigen_decomposition.h"
#include "libcalib/hadamard.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

std::map<int, LayerStatistics> layers() {
  std::map<int, LayerStatistics> all;
  for (const int id : {3, 7})
    all[id] = test::statistics_of(test::shape_of(id, 4, 2, 16, 12), 100, static_cast<uint64_t>(id));
  return all;
}
FitRecord fit_record(bool per_head = false) {
  FitRecord record;
  record.method = parse_method(per_head ? "oscar:granularity=head" : "oscar");
  record.result = fit({layers(), {}}, record.method, {});
  return record;
}
struct Fitted {
  RotationSet k, v;
};
Fitted fitted(bool per_head = false) {
  const FitResult result = fit_record(per_head).result;
  return {rotation_set(result.codes.k), rotation_set(result.codes.v)};
}
void expect_float32_of(const RotationSet& found, const RotationSet& expected) {
  EXPECT_EQ(found.side, expected.side);
  EXPECT_EQ(found.objective, expected.objective);
  EXPECT_EQ(found.composition, expected.composition);
  EXPECT_EQ(found.per_head, expected.per_head);
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  for (const auto& [id, layer] : expected.layers) {
    const auto& other = found.layers.at(id);
    ASSERT_EQ(other.rotation.size(), layer.rotation.size());
    for (size_t h = 0; h < layer.rotation.size(); ++h) {
      EXPECT_EQ(other.rotation[h], Matrix(layer.rotation[h].cast<float>().cast<double>()));
      EXPECT_EQ(other.eigenvalues.at(h), Vector(layer.eigenvalues[h].cast<float>().cast<double>()));
    }
  }
}
template <typename T>
PtValue pt(T content) {
  PtValue value;
  value.value = std::move(content);
  return value;
}

TEST(RotationFile, RoundTripOfEveryFormAndFormat) {
  const test::TempDir dir;
  for (const bool per_head : {false, true}) {
    const Fitted result = fitted(per_head);
    for (const RotationSet* set : {&result.k, &result.v}) {
      write_rotations_pt(dir / "any.pt", *set);
      write_rotations_safetensors(dir / "any.safetensors", *set, {});
      expect_float32_of(read_rotations(dir / "any.pt"), *set);
      expect_float32_of(read_rotations(dir / "any.safetensors"), *set);
    }
  }
}

TEST(RotationFile, KeysOfVersionOneAndTwo) {
  const test::TempDir dir;
  for (const bool per_head : {false, true}) {
    write_rotations_pt(dir / "k.pt", fitted(per_head).k);
    const PtValue root = read_pt(dir / "k.pt");
    const PtDict& file = root.dict("file");
    EXPECT_EQ(file.find("format_version")->integer(""), per_head ? 2 : 1);
    EXPECT_EQ(file.find("objective")->text(""), per_head ? "qqt_r_h_pbr_perhead" : "qqt_r_h_pbr");
    EXPECT_EQ(file.find("source_grouping")->text(""), per_head ? "per_kv_head" : "layer");
    EXPECT_EQ(file.items.size(), 4u);
    const PtDict& layer = file.find("layers")->dict("").find(7)->dict("");
    EXPECT_EQ(layer.items.size(), 3u);
    EXPECT_EQ(layer.find("layer_id")->integer(""), 7);
    expect(layer.find("rotation")->tensor(""), DType::F32, per_head ? Shape{2, 16, 16} : Shape{16, 16},
           "rotation");
    expect(layer.find("eigenvalues")->tensor(""), DType::F32, per_head ? Shape{2, 16} : Shape{16},
           "eigenvalues");
  }
}

TEST(RotationFile, SameInputsSameBytes) {
  const test::TempDir dir;
  const Fitted a = fitted(), b = fitted();
  write_rotations_pt(dir / "k_a.pt", a.k);
  fs::create_directory(dir / "other");
  write_rotations_pt(dir / "other" / "k_a.pt", b.k);
  EXPECT_EQ(test::read(dir / "k_a.pt"), test::read(dir / "other" / "k_a.pt"));
}

TEST(RotationFile, SafetensorsCarriesTheProvenance) {
  const test::TempDir dir;
  Provenance p;
  p.model_digest = "abc";
  p.tokens = 7;
  write_rotations_safetensors(dir / "v.safetensors", fitted().v, p);
  const auto file = read_safetensors(dir / "v.safetensors");
  EXPECT_EQ(file.metadata.at("model_digest"), "abc");
  EXPECT_EQ(file.metadata.at("tokens"), "7");
  EXPECT_EQ(file.metadata.at("side"), "v");
}

TEST(RotationFile, ToleratesWhatPublishedFilesDo) {
  const test::TempDir dir;
  const Tensor shared = make_tensor({2, 2}, std::vector<float>{1, 0, 0, 1});
  PtDict layers, file;
  for (const char* id : {"0", "12"}) {
    PtDict layer;
    layer.set("rotation", pt(shared));
    layers.set(id, pt(std::move(layer)));
  }
  file.set("format_version", pt(std::string("identity-v1")));
  file.set("objective", pt(std::string("identity")));
  file.set("layers", pt(std::move(layers)));
  write_pt(dir / "v_rotation.pt", pt(file), "v_rotation");
  const auto set = read_rotations(dir / "v_rotation.pt");
  EXPECT_EQ(set.side, Side::V);
  EXPECT_EQ(set.composition, "");
  EXPECT_EQ(set.layers.at(12).rotation[0], Matrix(Matrix::Identity(2, 2)));
  EXPECT_TRUE(set.layers.at(0).eigenvalues.empty());
  // Neither the objective nor the name says K or V.
  write_pt(dir / "rotation.pt", pt(file), "rotation");
  EXPECT_THROW(read_rotations(dir / "rotation.pt"), std::invalid_argument);
}

TEST(RotationFile, TheObjectiveDecidesBeforeTheName) {
  const test::TempDir dir;
  write_rotations_pt(dir / "v_rotation_qqt_r_h_pbr.pt", fitted().k);
  EXPECT_EQ(read_rotations(dir / "v_rotation_qqt_r_h_pbr.pt").side, Side::K);
}

TEST(RotationFile, Objectives) {
  const auto parse = [](const char* text) { return parse_objective(text); };
  EXPECT_EQ(parse("qqt_r_h_pbr").side, Side::K);
  EXPECT_EQ(parse("qqt_r_h_pbr").composition, "r_h_pbr");
  EXPECT_EQ(parse("qqt_h_pbr").composition, "h_pbr");
  EXPECT_EQ(parse("qqt-mass_pbr").composition, "pbr");
  EXPECT_EQ(parse("sst_plain_perhead").side, Side::V);
  EXPECT_EQ(parse("sst_plain_perhead").composition, "plain");
  EXPECT_FALSE(parse("hadamard").side);
  EXPECT_FALSE(parse("cov_eig_hadamard_perhead").side);
  EXPECT_EQ(parse("uresidual").composition, "");
}

TEST(RotationFile, RefusesLiesByName) {
  const test::TempDir dir;
  const auto refused = [&](const RotationSet& set, const std::string& word) {
    write_rotations_pt(dir / "k_x.pt", set);
    try {
      read_rotations(dir / "k_x.pt");
      ADD_FAILURE() << word << ": was read";
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("layer 7"), std::string::npos) << e.what();
    }
  };
  RotationSet set = fitted().k;
  set.layers[7].rotation[0](1, 1) += 0.01;
  refused(set, "not orthogonal");
  set = fitted().k;
  set.layers[7].rotation[0](1, 1) = NAN;
  refused(set, "not finite");
  set = fitted().k;
  std::swap(set.layers[7].eigenvalues[0](0), set.layers[7].eigenvalues[0](15));
  refused(set, "ascend");
  set = fitted().k;
  set.layers[7].eigenvalues[0].conservativeResize(8);
  refused(set, "eigenvalues");
}

// Means, and maps that are not orthogonal: version 3.
TEST(RotationFile, VersionThreeKeepsMeansAndInverses) {
  const test::TempDir dir;
  for (const char* specification : {"oscar:centre=mean", "center", "flat", "stretch"}) {
    const FitResult result = fit({layers(), {}}, parse_method(specification), {});
    const RotationSet set = rotation_set(result.codes.k);
    write_rotations_pt(dir / "k.pt", set);
    write_rotations_safetensors(dir / "k.safetensors", set, {});
    const PtValue root = read_pt(dir / "k.pt");
    EXPECT_EQ(root.dict("k").find("format_version")->integer("version"), 3) << specification;
    EXPECT_EQ(root.dict("k").find("source_grouping")->text("grouping"), set.per_head ? "head" : "layer");
    for (const char* file : {"k.pt", "k.safetensors"}) {
      const RotationSet found = read_rotations(dir / file);
      expect_float32_of(found, set);
      for (const auto& [id, layer] : set.layers) {
        const auto& other = found.layers.at(id);
        ASSERT_EQ(other.means.size(), layer.means.size()) << specification;
        ASSERT_EQ(other.inverse.size(), layer.inverse.size()) << specification;
        for (size_t h = 0; h < layer.means.size(); ++h)
          EXPECT_EQ(other.means[h], Vector(layer.means[h].cast<float>().cast<double>()));
        for (size_t h = 0; h < layer.inverse.size(); ++h)
          EXPECT_EQ(other.inverse[h], Matrix(layer.inverse[h].cast<float>().cast<double>()));
      }
    }
  }
}

TEST(RotationFile, VersionThreeMustBeWhole) {
  const test::TempDir dir;
  RotationSet set = rotation_set(fit({layers(), {}}, parse_method("flat"), {}).codes.k);
  const auto refused = [&](const char* part) {
    write_rotations_pt(dir / "k_x.pt", set);
    try {
      read_rotations(dir / "k_x.pt");
      ADD_FAILURE() << part;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const RotationSet good = set;
  set.layers[7].inverse[1](2, 2) += 1;
  refused("map times inverse is off the identity");
  set = good;
  set.layers[7].means.push_back(Vector::Zero(16));
  refused("must be on all layers or on none");
  set = good;
  set.layers[7].inverse.pop_back();
  refused("q_rotation: expected as many as rotations");
}

// What engines that know version 3 are told of the maps and of the run.
TEST(RotationFile, VersionThreeSaysWhatItIs) {
  const test::TempDir dir;
  Provenance p;
  p.model_name = "toy";
  p.text_digest = "5e3a";
  p.tokens = 100;
  const RotationSet flat = rotation_set(fit({layers(), {}}, parse_method("flat"), {}).codes.k);
  write_rotations_pt(dir / "k.pt", flat, p, 4);
  const PtValue root = read_pt(dir / "k.pt");
  const PtDict& transform = root.dict("").find("transform")->dict("");
  EXPECT_EQ(transform.items.size(), 3u);
  EXPECT_EQ(transform.find("key")->text(""), flat.objective);
  EXPECT_EQ(std::get<bool>(transform.find("centered")->value), !flat.layers.at(7).means.empty());
  EXPECT_EQ(std::get<bool>(transform.find("orthogonal")->value), false);
  const PtDict& run = root.dict("").find("calibration")->dict("");
  EXPECT_EQ(run.items.size(), 6u);
  EXPECT_EQ(run.find("model_path")->text(""), "toy");
  EXPECT_EQ(run.find("prompt_sha256")->text(""), "5e3a");
  EXPECT_EQ(run.find("tokens")->integer(""), 100);
  EXPECT_EQ(run.find("global_kv_heads")->integer(""), 2);
  EXPECT_EQ(run.find("global_q_heads")->integer(""), 4);
  EXPECT_EQ(run.find("fitter")->text(""), "oscar-calib " OSCAR_VERSION);
  expect_float32_of(read_rotations(dir / "k.pt"), flat);
  // What is not known is left out.
  const RotationSet centred =
      rotation_set(fit({layers(), {}}, parse_method("oscar:centre=mean"), {}).codes.k);
  write_rotations_pt(dir / "k.pt", centred, {});
  const PtValue bare = read_pt(dir / "k.pt");
  EXPECT_FALSE(bare.dict("").find("calibration"));
  EXPECT_EQ(std::get<bool>(bare.dict("").find("transform")->dict("").find("centered")->value), true);
  EXPECT_EQ(std::get<bool>(bare.dict("").find("transform")->dict("").find("orthogonal")->value), true);
  RotationSet values = rotation_set(fit({layers(), {}}, parse_method("outaware"), {}).codes.v);
  write_rotations_pt(dir / "v.pt", values);
  EXPECT_TRUE(read_pt(dir / "v.pt").dict("").find("transform")->dict("").find("value"));
}

TEST(RotationFile, VersionsOneAndTwoAreTheSameBytesAsEver) {
  const test::TempDir dir;
  Provenance p;
  p.model_name = "toy";
  p.tokens = 100;
  for (const bool per_head : {false, true}) {
    RotationSet set;
    set.objective = per_head ? "qqt_r_h_pbr_perhead" : "qqt_r_h_pbr";
    set.per_head = per_head;
    Matrix turned = Matrix::Zero(4, 4);
    for (int i = 0; i < 4; ++i) turned(i, (i + 1) % 4) = i % 2 ? -1 : 1;
    for (const int id : {3, 11}) {
      LayerRotation& layer = set.layers[id];
      layer.rotation = {turned};
      layer.eigenvalues = {Vector{{0.25, 1, 2, static_cast<double>(id)}}};
      if (!per_head) continue;
      layer.rotation.push_back(Matrix::Identity(4, 4));
      layer.eigenvalues.push_back(layer.eigenvalues[0]);
    }
    write_rotations_pt(dir / "k.pt", set, p, 8);
    EXPECT_EQ(sha256_file(dir / "k.pt"),
              per_head ? "bd5b8f025818f150209ec219606eddabf6d8aebeae26bac341aaab0ccdb42fcd"
                       : "180ebb10f015a90cd54a7348c7787dc5dbaa047c132448049629e73977f7c28d");
    write_rotations_safetensors(dir / "k.safetensors", set, {});
    EXPECT_EQ(sha256_file(dir / "k.safetensors"),
              per_head ? "761ed48968642a7488ed927cb58a9ec4dbb217a2d8d8c1750344fcc342e0406d"
                       : "715ea2fa617a0292351694d40f1104cc129912946d0e8cadcf947735b9f869bf");
  }
}

// Keys that are absent, None, or of other producers.
TEST(RotationFile, ToleratesWhatOtherProducersLeaveOutOrAdd) {
  const test::TempDir dir;
  PtDict entry, layers;
  entry.set("rotation", pt(make_tensor({2, 2}, std::vector<float>{0, 1, 1, 0})));
  layers.set(int64_t{4}, pt(entry));
  PtDict bare;
  bare.set("layers", pt(layers));
  write_pt(dir / "k_rotation.pt", pt(bare), "another_name");
  EXPECT_EQ(read_rotations(dir / "k_rotation.pt").layers.at(4).rotation[0](0, 1), 1);

  entry.set("layer_id", pt(int64_t{4}));
  for (const char* name : {"eigenvalues", "q_rotation", "k_mean"}) entry.set(name, pt(PtNone{}));
  layers.set(int64_t{4}, pt(entry));
  PtDict file;
  file.set("format_version", pt(std::string("identity-v1")));
  file.set("source_grouping", pt(std::string("identity")));
  file.set("calibration", pt(PtDict{}));
  file.set("transform", pt(PtDict{}));
  file.set("layers", pt(layers));
  for (const auto& [objective, side] : {std::pair{"identity-k", Side::K},
                                        {"identity-v", Side::V},
                                        {"hadamard_k", Side::K},
                                        {"hadamard_v", Side::V},
                                        {"oscar2_optr_k", Side::K},
                                        {"oscar2_v_pre_wo", Side::V}}) {
    file.set("objective", pt(std::string(objective)));
    // The objective decides, though the name says the other side.
    const std::string name = side == Side::K ? "v_rotation_qqt_r_h_pbr.pt" : "k_rotation_qqt_r_h_pbr.pt";
    write_pt(dir / name, pt(file), "any");
    const RotationSet set = read_rotations(dir / name);
    EXPECT_EQ(set.side, side) << objective;
    EXPECT_TRUE(set.layers.at(4).eigenvalues.empty());
    EXPECT_TRUE(set.layers.at(4).means.empty());
  }
  file.set("layers", pt(std::string("none")));
  write_pt(dir / "k_bad.pt", pt(file), "any");
  EXPECT_THROW(read_rotations(dir / "k_bad.pt"), std::runtime_error);
}

TEST(RotationFile, OneFormForAllLayers) {
  const test::TempDir dir;
  RotationSet set = fitted(true).k;
  write_rotations_pt(dir / "k_x.pt", set);
  PtValue root = read_pt(dir / "k_x.pt");
  auto& file = std::get<PtDict>(root.value);
  auto& layers = std::get<PtDict>(const_cast<PtValue&>(*file.find("layers")).value);
  auto& entry = std::get<PtDict>(const_cast<PtValue&>(*layers.find(7)).value);
  std::vector<float> one(256);
  for (size_t i = 0; i < 16; ++i) one[17 * i] = 1;
  entry.set("rotation", pt(make_tensor({16, 16}, one)));
  write_pt(dir / "k_x.pt", root, "k_x");
  try {
    read_rotations(dir / "k_x.pt");
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(
        std::string(error.what()).find("layer 7: some layers have one rotation and others one per KV head"),
        std::string::npos)
        << error.what();
  }
}

TEST(RotationFile, RefusesAnUnknownExtension) {
  const test::TempDir dir;
  test::write(dir / "k_x.bin", "x");
  EXPECT_THROW(read_rotations(dir / "k_x.bin"), std::invalid_argument);
}

TEST(RotationDirectory, PublishedNamesAndManifest) {
  const test::TempDir dir;
  const Fitted result = fitted();
  const auto both = std::vector{RotationFormat::Pt, RotationFormat::SafeTensors};
  const auto files = write_fit_directory(dir / "rotations", fit_record(), both);
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files[0].name, "k_rotation_qqt_r_h_pbr.pt");
  EXPECT_EQ(files[3].name, "v_rotation_sst_r_h_pbr.safetensors");
  const auto listed = read_manifest(dir / "rotations");
  ASSERT_EQ(listed.size(), 4u);
  EXPECT_EQ(listed[0].sha256, files[0].sha256);
  const auto pair = read_rotation_directory(dir / "rotations");
  expect_float32_of(pair.k, result.k);
  expect_float32_of(pair.v, result.v);

  // A second fit into the same directory: the manifest says which files count.
  write_fit_directory(dir / "rotations", fit_record(true), both);
  EXPECT_TRUE(read_rotation_directory(dir / "rotations").k.per_head);
  fs::remove(dir / "rotations" / "manifest.json");
  EXPECT_THROW(read_rotation_directory(dir / "rotations"), std::invalid_argument);
  EXPECT_THROW(read_rotation_directory(dir / "nothing"), std::invalid_argument);
}

// Another method into the same directory: what the first left there is not read for it.
TEST(RotationDirectory, FilesOfAnEarlierMethodDoNotCount) {
  const test::TempDir dir;
  FitRecord codes;
  codes.method = parse_method("turboquant");
  codes.result = fit({layers(), {}}, codes.method, {});
  const auto codes_first = dir / "codes first", rotations_first = dir / "rotations first";
  write_fit_directory(codes_first, codes, {RotationFormat::Pt});
  EXPECT_TRUE(has_codes(codes_first));
  write_fit_directory(codes_first, fit_record(), {RotationFormat::Pt});
  EXPECT_TRUE(fs::exists(codes_first / "codes.safetensors"));
  EXPECT_FALSE(has_codes(codes_first));
  EXPECT_EQ(kind_of(codes_first), FileKind::RotationDirectory);
  EXPECT_EQ(read_rotation_directory(codes_first).k.objective, "qqt_r_h_pbr");

  write_fit_directory(rotations_first, fit_record(), {RotationFormat::Pt});
  EXPECT_TRUE(has_rotations(rotations_first));
  write_fit_directory(rotations_first, codes, {RotationFormat::Pt});
  EXPECT_TRUE(has_codes(rotations_first));
  EXPECT_FALSE(has_rotations(rotations_first));
  EXPECT_EQ(kind_of(rotations_first), FileKind::Codes);
  EXPECT_THROW(read_rotation_directory(rotations_first), std::invalid_argument);
  fs::remove(rotations_first / "manifest.json");  // nothing says which is the later
  EXPECT_TRUE(has_codes(rotations_first));
  EXPECT_EQ(read_rotation_directory(rotations_first).k.objective, "qqt_r_h_pbr");
}

// A serving engine that calibrates itself says so while it publishes K and V, which belong together.
TEST(RotationDirectory, APairThatIsNotWholeIsRefused) {
  const test::TempDir dir;
  const auto both = std::vector{RotationFormat::Pt};
  write_fit_directory(dir / "rotations", fit_record(), both);
  test::write(dir / "rotations" / ".oscar_0123456789abcdef.complete.json", "{}");
  EXPECT_NO_THROW(read_rotation_directory(dir / "rotations"));
  test::write(dir / "rotations" / ".oscar_0123456789abcdef.pending.json", "{}");
  try {
    read_rotation_directory(dir / "rotations");
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find(".oscar_0123456789abcdef.pending.json"), std::string::npos) << said;
    EXPECT_NE(said.find("let it finish, or calibrate again"), std::string::npos) << said;
  }
}

TEST(RotationDirectory, CentredFilesSayWhichRunTheyAreOf) {
  const test::TempDir dir;
  FitRecord record;
  record.provenance.model_name = "toy";
  record.provenance.tokens = 100;
  record.method = parse_method("center");
  record.result = fit({layers(), {}}, record.method, {});
  const auto files = write_fit_directory(dir / "rotations", record, {RotationFormat::Pt});
  const PtValue root = read_pt(dir / "rotations" / files.at(0).name);
  EXPECT_EQ(root.dict("").find("calibration")->dict("").find("model_path")->text(""), "toy");
}

TEST(RotationDirectory, LeavesNothingBesides) {
  const test::TempDir dir;
  FitRecord record = fit_record();
  record.result.codes.v.layers.begin()->second.clear();  // the second file cannot be written
  EXPECT_ANY_THROW(write_fit_directory(dir / "rotations", record, {RotationFormat::Pt}));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace oscar
