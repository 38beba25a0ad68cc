// PQ and RVQ codebooks of the serving engine: k_pq_n16_c256_d8.pt, k_rvq_n16_c256x16_d8.pt. A rotated row is
// cut into n_sub consecutive runs of sub_dim channels; each is the index of its nearest of C centroids (and,
// with two stages, of what is left of it in a second book). No norm and no scale is kept. Source of the
// format: the trainer and the reader in FutureMLS-Lab/OSCAR (docs/file-formats.md).
#pragma once
#include <filesystem>
#include <optional>

#include "libcalib/codes.h"
#include "libcalib/rotation.h"

namespace oscar {

inline constexpr const char* kPlainRows = "row_times_checkpoint_rotation";             // x R
inline constexpr const char* kCentredRows = "centered_row_times_checkpoint_rotation";  // (x - mean) R

struct ProductLayer {
  std::vector<std::vector<float>> stage1;  // 1 (shared by the heads) or Hkv books (n_sub, C, sub_dim)
  std::vector<std::vector<float>> stage2;  // as many, of C2 centroids; empty: one stage
  std::optional<double> sqnr;              // dB, of stage 1 alone; absent where the file does not say
  std::optional<double> sqnr_rvq;          // of both
};
struct ProductCodebooks {
  static constexpr int kEveryLayer = -1;  // the only id of a legacy file that has one book for all layers

  Side side = Side::K;
  std::string model,
      rotation;  // rotation: file name of the rotations they were trained with, without extension
  std::string convention = kPlainRows;  // what the rows were
  int n_sub = 0, sub_dim = 0;
  int centroids = 0, centroids2 = 0;   // powers of two up to 256; centroids2 is 0 with one stage
  std::map<int, ProductLayer> layers;  // by global id
};

// "k_pq_n16_c256_d8.pt".
std::string product_codebooks_name(const ProductCodebooks& books);
// codebooks_stage1, else codebooks_per_layer, else the shared list `codebooks`, as the engine looks for them.
// std::runtime_error naming the file for what the engine refuses, and for words that are not finite.
ProductCodebooks read_product_codebooks(const std::filesystem::path& path);
// With the books of one head a layer as [L, n_sub, C, sub_dim], else per head. std::invalid_argument when the
// books do not fit the numbers. Atomic.
void write_product_codebooks(const std::filesystem::path& path, const ProductCodebooks& books);

// The rows that an engine would hold with these books and rotations: vector codes without norm, words rounded
// to fp16 as the engine loads them. std::invalid_argument for two stages, which no codec here adds up; for
// another side, head dim or layers; and where books and rotations do not agree about means.
SideCodes codes_of(const ProductCodebooks& books, const RotationSet& rotations);
// The books of vector codes; `rotation` is the name of the file that write_rotations_pt gives maps_of(codes).
// std::invalid_argument unless all heads have equal groups, at most 8 bits each, and no norm.
ProductCodebooks product_codebooks_of(const SideCodes& codes);
// The maps and means of vector codes alone, as a rotation file holds them.
RotationSet maps_of(const SideCodes& codes);

}  // namespace oscar
