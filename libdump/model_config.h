// What a decoder is, whatever file it came from.
#pragma once
#include <string>
#include <vector>

#include "libcalib/types.h"

namespace oscar {

// The angles of the rotary embedding: position times frequencies(), dims i and i + dim / 2 of a head are a
// pair. Scalings by the names of transformers, and "divisors", those that a GGUF file holds.
struct RopeConfig {
  double base = 10000;
  int dim = 0;                   // rotated dims of a head, the first ones
  bool neighbours = false;       // dims 2i and 2i + 1 are a pair instead
  std::string scaling = "none";  // "none", "linear", "dynamic", "llama3", "yarn", "longrope", "divisors"
  double factor = 1;             // linear: positions are divided by it; llama3, yarn: slow frequencies are
  double low_frequency = 1,
         high_frequency = 4;        // llama3, yarn: turns within original_context between which it fades in
  bool truncate = true;             // yarn: the dims between which it fades in are whole numbers
  double attention_factor = 1;      // of cos and sin: yarn, longrope
  int64_t original_context = 8192;  // dynamic, longrope: a longer sequence gets other angles
  std::vector<double> divisors{};   // (dim / 2) of each frequency: divisors, longrope
  std::vector<double> long_divisors{};  // (dim / 2) longrope: of sequences longer than original_context
  // Whether a sequence of so many tokens gets other angles than a short one.
  bool stretched(int64_t length) const;
  std::vector<double> frequencies(int64_t length = 1) const;  // (dim / 2) of a sequence of so many tokens
  std::string describe() const;                               // canonical text for provenance
};

struct ModelConfig {
  std::string name, architecture, path;
  int layers = 0, hidden = 0, intermediate = 0, vocabulary = 0;
  int64_t context = 0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  std::vector<RopeConfig> ropes;      // more than one where layers differ
  std::vector<LayerShape> attention;  // one a layer that has a growing KV cache
  std::vector<std::string> notes;     // what of the checkpoint is left out
  std::string describe_rope() const;  // of all of them
};

}  // namespace oscar
