// A method is a table row: for keys and for values, an algorithm with its options. A specification in text is
//   NAME[:option=value…][/NAME[:option=value…]]        "oscar:granularity=head",
//   "awvq:shape=4x10/awvq:shape=4x6"
// one method for both sides, or one for keys and one for values.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "libcalib/codes.h"
#include "libcalib/codeword_search.h"
#include "libcalib/transforms/klt.h"

namespace oscar {

enum class Granularity : uint8_t { Layer, Head };
enum class Centre : uint8_t { None, Mean, Weighted, Top };
enum class Stored : uint8_t { Int8, Fp16, E4M3, E5M2 };
inline Importance importance_of(Centre centre) {
  return centre == Centre::Weighted || centre == Centre::Top ? Importance::Attention : Importance::None;
}
struct Shape2 {
  int size = 4, bits = 8;
  bool operator==(const Shape2&) const = default;
};

struct MethodOptions {
  std::string target, composition = "r_h_pbr";
  Granularity granularity = Granularity::Head;
  Centre centre = Centre::None;
  std::string codec = "sglang-prefill";
  double clip = 0;
  int groups = 1;
  Shape2 shape;
  bool norm = false;
  Partition partition = Partition::Snake;
  Importance importance = Importance::Attention;
  Stored stored = Stored::Int8;
  int iterations = 10, refine = 5, restarts = 1;
  int64_t rows = 0;
  uint64_t seed = 0;
  double bits = 2;
  std::vector<Shape2> shapes = {{64, 8}, {32, 8}, {16, 8}, {8, 8}, {4, 8}, {2, 8}};
  bool qjl = false;
  const CodewordSearch* search = &cpu_search();  // of training; no option of a specification
};
struct OptionInfo {
  std::string_view name, meaning;
};
std::span<const OptionInfo> option_table();

// What was checked of one side of a layer; worst head.
struct FitCheck {
  int layer = 0;
  Side side = Side::K;
  double orthogonality = 0;  // max |F F^-1 - I|, F^-1 = F^T for rotations
  double residual = 0;       // of the decomposition
  // Of the statistics; all 0 where a method needs none (hadamard).
  int rank = 0;              // eigenvalues above 1e-10 of the largest
  double condition = 0;      // largest / smallest eigenvalue; infinite below full rank
  double lemma1 = 0;         // max / mean of diag(R^T Sigma R); 1 after U H (OSCAR Lemma 1)
  double shared_loss = 0;    // of a shared rotation against one per head, see shared_rotation_loss()
  double volume_spread = 0;  // of vector codes: largest / smallest geometric mean variance of a group
  double distortion = 0;     // of trained codes: weighted squared error of a row over its weighted energy
  double rows_per_word = 0;  // of trained codes: training rows over codewords, the least of all groups
};

// One of several codes that a head may take, for a budget.
struct Candidate {
  HeadCode code;
  double bits = 0;  // of a row
  double loss =
      0;  // predicted, relative energy of the residual stream; the same unit for keys, values and all layers
};

// One side of one layer.
struct LayerFit {
  std::vector<HeadCode> heads;                       // 1 or Hkv; empty where there are candidates
  std::vector<std::vector<Candidate>> candidates{};  // Hkv, for methods that a budget chooses for
  bool tied = false;                                 // the heads of a layer take the same candidate
  FitCheck check;
  std::vector<std::string> warnings;
};

enum Need : unsigned { kNothing = 0, kSums = 1, kScores = 2, kRows = 4, kMetric = 8 };

// How one side is made. `layer.rows` holds the sampled rows where they are needed.
struct AlgorithmInfo {
  std::string_view name;     // C++ name, for the table of methods
  unsigned needs;            // of the statistics, for keys and values alike; kMetric: of values only
  std::string_view options;  // names that it honours, separated by blanks
  LayerFit (*fit)(const LayerStatistics& layer, Side side, const MethodOptions& options);
  std::string (*objective)(Side side, const MethodOptions& options);
};
struct MethodInfo {
  std::string_view name;
  const AlgorithmInfo *k, *v;
  std::string_view defaults_k, defaults_v;  // options that differ from MethodOptions, as in a specification
  std::string_view stores, source, summary;
};
std::span<const MethodInfo> method_table();
const MethodInfo& find_method(std::string_view name);  // std::invalid_argument "unknown method 'x'; known: …"

// A specification, read: everything that a fit needs to know.
struct SideMethod {
  const MethodInfo* method = nullptr;
  const AlgorithmInfo* algorithm = nullptr;
  MethodOptions options;
};
struct Method {
  std::string
      name;  // canonical specification: only options that differ from the method's own, in table order
  SideMethod k, v;
  unsigned needs() const;
  bool trains() const;  // codebooks, on either side
};
// std::invalid_argument for an unknown method or option, an option that the method does not take, a bad
// value.
Method parse_method(std::string_view specification);
// Every option that the side's algorithm honours, with its value, in table order.
std::vector<std::pair<std::string, std::string>> honoured_options(const SideMethod& side);
std::string needs_text(unsigned needs);  // "second moments, score statistics, sampled rows"

}  // namespace oscar
