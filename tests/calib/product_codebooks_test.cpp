// PQ and RVQ books: files as the trainer writes them, and codes as the engine makes them.
#include "libcalib/artifacts/product_codebooks.h"

#include "formats/dtype.h"
#include "libcalib/artifacts/convert.h"
#include "libcalib/artifacts/rotation_file.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/pt_support.h"

namespace oscar::test {
namespace {

constexpr int kSubs = 4, kSize = 8, kDim = kSubs * kSize;

std::vector<float> book_of(int centroids, uint64_t seed) {
  auto words = normal(static_cast<size_t>(kSubs * centroids * kSize), seed);
  for (float& word : words) word = f16_to_float(float_to_f16(word));
  return words;
}
ProductCodebooks books_of(size_t heads = 1, int centroids2 = 0) {
  ProductCodebooks books;
  books.model = "toy";
  books.rotation = "k_rotation_qqt_r_h_pbr";
  books.n_sub = kSubs;
  books.sub_dim = kSize;
  books.centroids = 16;
  books.centroids2 = centroids2;
  for (const int id : {2, 5}) {
    ProductLayer& layer = books.layers[id];
    for (size_t h = 0; h < heads; ++h) {
      layer.stage1.push_back(book_of(16, static_cast<uint64_t>(id) * 10 + h));
      if (centroids2) layer.stage2.push_back(book_of(centroids2, static_cast<uint64_t>(id) * 20 + h));
    }
    layer.sqnr = 10.5 + id;
    if (centroids2) layer.sqnr_rvq = 12.25 + id;
  }
  return books;
}
void expect_equal(const ProductCodebooks& a, const ProductCodebooks& b) {
  EXPECT_EQ(a.side, b.side);
  EXPECT_EQ((std::vector{a.model, a.rotation, a.convention}),
            (std::vector{b.model, b.rotation, b.convention}));
  EXPECT_EQ((std::vector{a.n_sub, a.sub_dim, a.centroids, a.centroids2}),
            (std::vector{b.n_sub, b.sub_dim, b.centroids, b.centroids2}));
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (const auto& [id, layer] : b.layers) {
    ASSERT_TRUE(a.layers.contains(id)) << id;
    EXPECT_EQ(a.layers.at(id).stage1, layer.stage1);
    EXPECT_EQ(a.layers.at(id).stage2, layer.stage2);
    EXPECT_EQ(a.layers.at(id).sqnr, layer.sqnr);
    EXPECT_EQ(a.layers.at(id).sqnr_rvq, layer.sqnr_rvq);
  }
}
RotationSet rotations(const char* method = "oscar") {
  return rotation_set(fitted(method).codes.k);
}

TEST(ProductCodebooks, FilesAreNamedAsTheTrainerNamesThem) {
  ProductCodebooks books;
  books.n_sub = 16;
  books.sub_dim = 8;
  books.centroids = 256;
  EXPECT_EQ(product_codebooks_name(books), "k_pq_n16_c256_d8.pt");
  books.centroids2 = 16;
  EXPECT_EQ(product_codebooks_name(books), "k_rvq_n16_c256x16_d8.pt");
  books.side = Side::V;
  EXPECT_EQ(product_codebooks_name(books), "v_rvq_n16_c256x16_d8.pt");
}

TEST(ProductCodebooks, RoundTripOfEveryForm) {
  const TempDir folder;
  for (const auto& books : {books_of(), books_of(2), books_of(1, 4), books_of(2, 4)}) {
    const fs::path path = folder / product_codebooks_name(books);
    write_product_codebooks(path, books);
    expect_equal(read_product_codebooks(path), books);
  }
}

TEST(ProductCodebooks, HaveTheKeysOfTheTrainer) {
  const TempDir folder;
  write_product_codebooks(folder / "k.pt", books_of());
  const PtValue one = read_pt(folder / "k.pt");
  EXPECT_EQ(names_of(one.dict("")),
            (std::vector<std::string>{"layer_ids", "n_sub", "sub_dim", "model", "tensor", "rotation",
                                      "rotation_convention", "sqnr_per_layer", "sqnr_avg",
                                      "codebooks_per_layer", "n_centroids"}));
  expect(one.dict("").find("codebooks_per_layer")->tensor(""), DType::F32, {2, 4, 16, 8}, "pq");
  EXPECT_EQ(one.dict("").find("tensor")->text(""), "k");
  EXPECT_EQ(one.dict("").find("rotation_convention")->text(""), "row_times_checkpoint_rotation");
  EXPECT_EQ(std::get<double>(one.dict("").find("sqnr_avg")->value), 14.0);
  load_in_torch(folder / "k.pt",
                "assert x['layer_ids'] == [2, 5] and x['sqnr_per_layer'][5] == 15.5 and x['n_sub'] == 4\n"
                "assert x['codebooks_per_layer'].shape == (2, 4, 16, 8)\n");
  write_product_codebooks(folder / "k.pt", books_of(2, 4));
  const PtValue two = read_pt(folder / "k.pt");
  EXPECT_EQ(names_of(two.dict("")),
            (std::vector<std::string>{"layer_ids", "n_sub", "sub_dim", "model", "tensor", "rotation",
                                      "rotation_convention", "per_head", "kv_heads", "sqnr_per_layer",
                                      "sqnr_avg", "codebooks_stage1", "codebooks_stage2", "n_cents1",
                                      "n_cents2", "sqnr_rvq_per_layer", "sqnr_rvq_avg"}));
  expect(two.dict("").find("codebooks_stage2")->tensor(""), DType::F32, {2, 2, 4, 4, 8}, "rvq");
  EXPECT_EQ(two.dict("").find("n_cents2")->integer(""), 4);
}

TEST(ProductCodebooks, WhatTheEngineDefaultsTo) {
  const TempDir folder;
  write_product_codebooks(folder / "k.pt", books_of());
  change(folder / "k.pt", folder / "v_x.pt", [](PtDict& file) {
    for (const char* name : {"layer_ids", "tensor", "n_centroids", "sqnr_per_layer", "rotation_convention"})
      remove(file, name);
  });
  const ProductCodebooks found = read_product_codebooks(folder / "v_x.pt");
  EXPECT_EQ(found.side, Side::V);  // by the name
  EXPECT_EQ(found.convention, kPlainRows);
  ASSERT_TRUE(found.layers.contains(0) && found.layers.contains(1));
  EXPECT_EQ(found.layers.at(1).stage1, books_of().layers.at(5).stage1);
  EXPECT_FALSE(found.layers.at(1).sqnr);
}

TEST(ProductCodebooks, OneLegacyBookIsForEveryLayer) {
  const TempDir folder;
  write_product_codebooks(folder / "k.pt", books_of());
  const auto legacy = [&](bool ids) {
    change(folder / "k.pt", folder / "old.pt", [&](PtDict& file) {
      remove(file, "codebooks_per_layer");
      if (!ids) remove(file, "layer_ids");
      PtList list;
      for (int i = 0; i < kSubs; ++i) {
        const auto words = book_of(16, 1);
        list.items.push_back(pt(make_tensor(
            {16, kSize}, std::vector<float>(words.begin() + i * 128, words.begin() + (i + 1) * 128))));
      }
      file.set("codebooks", pt(list));
    });
    return read_product_codebooks(folder / "old.pt");
  };
  const ProductCodebooks listed = legacy(true), every = legacy(false);
  for (const int id : {2, 5})
    EXPECT_EQ(listed.layers.at(id).stage1, std::vector<std::vector<float>>{book_of(16, 1)});
  ASSERT_EQ(every.layers.size(), 1u);
  EXPECT_EQ(every.layers.at(ProductCodebooks::kEveryLayer).stage1,
            std::vector<std::vector<float>>{book_of(16, 1)});
  EXPECT_EQ(
      bytes_of({"", codes_of(every, rotations()), {Side::V, "", codes_of(every, rotations()).layers}}),
      bytes_of({"", codes_of(listed, rotations()), {Side::V, "", codes_of(listed, rotations()).layers}}));
  expect_said(message_of<std::invalid_argument>([&] { write_product_codebooks(folder / "x.pt", every); }),
              "give their ids");
}

TEST(ProductCodebooks, RefusesLies) {
  const TempDir folder;
  const auto refused = [&](const Change& spoil, const std::string& part, int centroids2 = 0) {
    write_product_codebooks(folder / "good.pt", books_of(1, centroids2));
    change(folder / "good.pt", folder / "bad.pt", spoil);
    const auto said = message_of<std::runtime_error>([&] { read_product_codebooks(folder / "bad.pt"); });
    expect_said(said, part);
    expect_said(said, "bad.pt");
  };
  const auto ids = [](std::vector<int64_t> numbers) {
    PtList list;
    for (const int64_t number : numbers) list.items.push_back(pt(number));
    return pt(list);
  };
  const auto books = [](Shape shape, float value = 0) {
    const auto count = static_cast<size_t>(element_count(shape));
    return pt(make_tensor(shape, std::vector<float>(count, value)));
  };
  refused([](PtDict& file) { remove(file, "codebooks_per_layer"); }, "not a file of PQ or RVQ books");
  refused([](PtDict& file) { remove(file, "n_sub"); }, "'n_sub' is missing");
  refused([](PtDict& file) { file.set("n_sub", pt(int64_t{8})); },
          "codebooks_per_layer: expected [-1, 8, -1, 8] of floats, found F32 [2, 4, 16, 8]");
  refused([](PtDict& file) { file.set("sub_dim", pt(int64_t{4})); }, "expected [-1, 4, -1, 4] of floats");
  refused([](PtDict& file) { file.set("n_centroids", pt(int64_t{32})); },
          "n_centroids: expected 16 to 16, found 32");
  refused(
      [&](PtDict& file) {
        file.set("codebooks_per_layer", books({2, 4, 24, 8}));
      },
      "expected a power of two of at most 256 centroids, found [2, 4, 24, 8]");
  refused(
      [&](PtDict& file) {
        file.set("codebooks_per_layer", books({2, 4, 512, 8}));
      },
      "at most 256 centroids");
  refused(
      [&](PtDict& file) {
        file.set("codebooks_per_layer", books({2, 4, 16, 8}, NAN));
      },
      "not all numbers are finite");
  refused([&](PtDict& file) { file.set("layer_ids", ids({2})); },
          "layer_ids: expected 2 layers as the books have, found 1");
  refused([&](PtDict& file) { file.set("layer_ids", ids({2, 2})); }, "a layer is there twice: 2, 2");
  refused([&](PtDict& file) { file.set("layer_ids", ids({2, -5})); }, "'-5' is not a layer id");
  refused([](PtDict& file) { file.set("tensor", pt("q")); }, "tensor: expected k or v, found 'q'");
  refused([](PtDict& file) { remove(file, "codebooks_stage2"); }, "'codebooks_stage2' is missing", 4);
  refused(
      [&](PtDict& file) {
        file.set("codebooks_stage2", books({1, 4, 4, 8}));
      },
      "codebooks_stage2 has other layers or heads", 4);
}

TEST(ProductCodebooks, WritingChecksWhatItIsGiven) {
  const TempDir folder;
  const auto refused = [&](const std::function<void(ProductCodebooks&)>& spoil, const std::string& part) {
    ProductCodebooks books = books_of();
    spoil(books);
    expect_said(message_of<std::invalid_argument>([&] { write_product_codebooks(folder / "x.pt", books); }),
                part);
  };
  refused([](ProductCodebooks& books) { books.layers.clear(); }, "expected layers");
  refused([](ProductCodebooks& books) { books.centroids = 24; }, "powers of two of at most 256");
  refused([](ProductCodebooks& books) { books.centroids = 8; },
          "layer 2: a book of 512 numbers, expected 256");
  refused([](ProductCodebooks& books) { books.layers[5].stage1.clear(); },
          "layer 5: books of 0 heads, expected 1");
  EXPECT_FALSE(fs::exists(folder / "x.pt"));
}

// The engine's rule: the nearest centroid of each run of channels of x R, in the fp16 words that it loads.
TEST(ProductCodes, CodeAsTheEngineDoes) {
  const ProductCodebooks books = books_of();
  const RotationSet maps = rotations();
  const SideCodes codes = codes_of(books, maps);
  EXPECT_EQ(codec_names(codes), "8x4");
  const LayerStatistics& layer = method_layers().at(5);
  for (const int head : {0, 1}) {
    const HeadCode& code = codes.of(5, head);
    const auto rows = coded_rows(layer, Side::K, head, code.transform);
    const auto found = decoded(*code.codec, rows, kDim, code.options);
    const auto& words = books.layers.at(5).stage1[0];
    for (size_t r = 0; r < 20; ++r) {
      const float* x = layer.rows.k.data() + r * 64 + static_cast<size_t>(head) * kDim;
      Vector y(kDim);
      for (int i = 0; i < kDim; ++i) y[i] = x[i];
      y = (y.transpose() * maps.layers.at(5).rotation[0]).transpose().eval();
      for (size_t s = 0; s < kSubs; ++s) {
        const float* nearest = nullptr;
        double least = INFINITY;
        for (size_t c = 0; c < 16; ++c) {
          const float* word = words.data() + (s * 16 + c) * kSize;
          double distance = 0;
          for (size_t i = 0; i < kSize; ++i)
            distance += std::pow(y[static_cast<Eigen::Index>(s * kSize + i)] - word[i], 2);
          if (distance < least) least = distance, nearest = word;
        }
        for (size_t i = 0; i < kSize; ++i)
          ASSERT_EQ(found[r * kDim + s * kSize + i], nearest[i]) << r << ' ' << s;
      }
    }
  }
}

TEST(ProductCodes, WordsAreTheFp16ThatTheEngineLoads) {
  ProductCodebooks books = books_of();
  books.layers.at(5).stage1[0][0] = 1.0001f;  // between two of fp16
  EXPECT_EQ(codes_of(books, rotations()).of(5, 0).options.codebook->groups[0].words[0], 1.0f);
}

TEST(ProductCodes, BooksOfCodesAreTheBooks) {
  ProductCodebooks books = books_of();
  for (auto& [id, layer] : books.layers) layer.sqnr.reset();
  books.model.clear();
  expect_equal(product_codebooks_of(codes_of(books, rotations())), books);
  // With means, and a book for each head.
  books = books_of(2);
  for (auto& [id, layer] : books.layers) layer.sqnr.reset();
  books.model.clear();
  books.convention = kCentredRows;
  const RotationSet centred = rotations("center");
  books.rotation = rotation_file_stem(centred);
  const SideCodes codes = codes_of(books, centred);
  ASSERT_EQ(codes.layers.at(5).size(), 2u);
  EXPECT_EQ(codes.layers.at(5)[1].transform.mean, centred.layers.at(5).means.back());
  expect_equal(product_codebooks_of(codes), books);
}

TEST(ProductCodes, OfAFitComeBackThroughBothFiles) {
  const TempDir folder;
  const SideCodes codes = fitted("awvq:shape=4x4:stored=fp16").codes.k;
  const ProductCodebooks books = product_codebooks_of(codes);
  EXPECT_EQ(product_codebooks_name(books), "k_pq_n8_c16_d4.pt");
  write_product_codebooks(folder / product_codebooks_name(books), books);
  write_rotations_pt(folder / (books.rotation + ".pt"), maps_of(codes));
  const SideCodes found = codes_of(read_product_codebooks(folder / product_codebooks_name(books)),
                                   read_rotations(folder / (books.rotation + ".pt")));
  for (const auto& [id, heads] : codes.layers) {
    for (size_t h = 0; h < heads.size(); ++h) {
      const int head = static_cast<int>(h);
      const HeadCode& other = found.layers.at(id).at(h);
      const auto rows = coded_rows(method_layers().at(id), Side::K, head, heads[h].transform);
      ASSERT_EQ(coded_rows(method_layers().at(id), Side::K, head, other.transform), rows);
      EXPECT_EQ(decoded(*other.codec, rows, kDim, other.options),
                decoded(*heads[h].codec, rows, kDim, heads[h].options));
    }
  }
}

TEST(ProductCodes, RefusesWhatDoesNotBelongTogether) {
  const auto refused = [](const std::function<void(ProductCodebooks&)>& spoil, const std::string& part,
                          const RotationSet& maps = rotations()) {
    ProductCodebooks books = books_of();
    spoil(books);
    expect_said(message_of<std::invalid_argument>([&] { codes_of(books, maps); }), part);
  };
  refused([](ProductCodebooks& books) { books = books_of(1, 4); }, "two stages (RVQ): no codec here adds");
  refused([](ProductCodebooks& books) { books.side = Side::V; }, "v books with rotations of k");
  refused([](ProductCodebooks& books) { books.convention = "rotation_times_row"; },
          "found 'rotation_times_row'");
  refused([](ProductCodebooks& books) { books.convention = kCentredRows; },
          "but the rotations have no means");
  refused([](ProductCodebooks&) {}, "row_times_checkpoint_rotation, but the rotations have means",
          rotations("center"));
  refused([](ProductCodebooks& books) { books.layers.erase(5); }, "layer 5 has a rotation and no books");
  refused([](ProductCodebooks& books) { books.layers[6] = books.layers[5]; }, "layer 6 has no rotation");
  refused([](ProductCodebooks& books) { books.layers[2].stage1[0][7] = 7e4f; }, "70000 is beyond the fp16");
  refused([](ProductCodebooks& books) { books.layers[2].stage1[0].pop_back(); },
          "expected 512 numbers, found 511");
  refused(
      [](ProductCodebooks& books) {
        books.n_sub = 2;
        for (auto& [id, layer] : books.layers) layer.stage1[0].resize(256);
      },
      "2 x 8 channels, the head dim of layer 2 is 32");
}

TEST(ProductCodes, BooksHoldEqualGroupsWithoutNorm) {
  const auto refused = [](const SideCodes& codes, const std::string& part) {
    expect_said(message_of<std::invalid_argument>([&] { product_codebooks_of(codes); }), part);
  };
  refused(fitted("nova").codes.k, "nova-4x8-norm', layer 2, head 0: its rows are divided by a norm");
  refused(fitted("oscar").codes.k, "codec sglang-prefill: PQ books hold vector codes alone");
  refused(fitted("awsq:bits=1.5").codes.k, "PQ books need one shape everywhere");
  refused(fitted("awvq:shape=4x10").codes.k,
          "groups 4x10: PQ books need one shape everywhere, of at most 8 bits");
  SideCodes codes = fitted("awvq:shape=4x4").codes.k;
  codes.layers.at(5)[1].transform.mean.resize(0);
  EXPECT_THROW(product_codebooks_of(codes), std::exception);
  codes = fitted("awvq:shape=4x4").codes.k;
  codes.layers.at(5).pop_back();
  EXPECT_THROW(product_codebooks_of(codes), std::invalid_argument);
  refused({Side::K, "x", {}}, "no layers");
}

ConvertOptions to(const char* target) {
  ConvertOptions options;
  options.to = target;
  return options;
}

TEST(ProductCodes, AConversionOfBothSidesWritesBothOrNothing) {
  const TempDir folder;
  CacheCodes codes{"x", fitted("awvq").codes.k, fitted("kivi").codes.v};
  write_codes(folder / "codes.safetensors", codes, {});
  expect_said(message_of<std::invalid_argument>(
                  [&] { convert({folder / "codes.safetensors"}, folder / "pq", to("pq")); }),
              "PQ books hold vector codes alone");
  EXPECT_FALSE(fs::exists(folder / "pq"));
}

// Under a name without an extension no reader would know the file.
TEST(ProductCodes, CodesGoIntoADirectoryWithoutAnExtension) {
  const TempDir folder;
  const CacheCodes codes = fitted("awvq").codes;
  write_codes(folder / "codes.safetensors", codes, {});
  const auto done = convert({folder / "codes.safetensors"}, folder / "copy", to("codes"));
  ASSERT_EQ(done.files, std::vector<fs::path>{folder / "copy" / "codes.safetensors"});
  EXPECT_EQ(kind_of(folder / "copy"), FileKind::Codes);
  EXPECT_EQ(bytes_of(read_codes(done.files[0])), bytes_of(codes));
}

}  // namespace
}  // namespace oscar::test
