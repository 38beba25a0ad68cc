// What GGUF metadata say of a decoder, and how its tensors are called.
#pragma once
#include "formats/gguf.h"
#include "libdump/models/transformer_spec.h"
#include "libdump/weights/gguf_weights.h"

namespace oscar {

// "<architecture>.<key>", a positive integer below 2^30, or std::runtime_error naming it.
int64_t need_positive(const GgufFile& file, const std::string& key);

// "<architecture>.nextn_predict_layers": layers after the decoder's, which block_count counts too.
int64_t layers_after(const GgufFile& file);

// What most families share: sizes, heads, key and value length, layers of one kind, one rotary embedding with
// its scaling (none, linear, yarn, or the divisors of rope_freqs.weight or rope_factors_*.weight). Refuses
// experts, unless the family has them, and other scalings by name.
TransformerSpec common_gguf(const GgufFile& file, bool experts = false);

// The experts of a file: their number, how many a token takes, their width; a softmax over all, normalised,
// or what expert_gating_func, expert_weights_norm and expert_weights_scale say.
MoeSpec experts_gguf(const GgufFile& file, const TransformerSpec& spec);

// The tensors of expected_tensors(spec) by their names in the file. Architectures that store rotary halves
// interleaved have them put back.
std::map<std::string, GgufName> gguf_names(const TransformerSpec& spec);

}  // namespace oscar
