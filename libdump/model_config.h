// What a decoder is, whatever file it came from.
#pragma once
#include <string>
#include <vector>

#include "libcalib/types.h"

namespace oscar {

struct RopeConfig {
  double base = 10000;
  int dim = 0;                    // rotated dims of a head
  std::string scaling = "none";   // none is all the present families need; anything else is refused by name
  std::string describe() const;   // canonical text for provenance
};

struct ModelConfig {
  std::string name, architecture, path;
  int layers = 0, hidden = 0, intermediate = 0, vocabulary = 0;
  int64_t context = 0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  RopeConfig rope;
  std::vector<LayerShape> attention;  // one a layer that has a growing KV cache
};

}  // namespace oscar
