// What GGUF metadata say of a decoder, and how its tensors are called.
#pragma once
#include "formats/gguf.h"
#include "libdump/models/transformer_spec.h"
#include "libdump/weights/gguf_weights.h"

namespace oscar {

// "<architecture>.<key>", a positive integer below 2^30, or std::runtime_error naming it.
int64_t need_positive(const GgufFile& file, const std::string& key);

// What most families share: sizes, heads, key and value length, layers of one kind, one rotary embedding with
// its scaling (none, linear, or the divisors of rope_freqs.weight). Refuses experts and other scalings by
// name.
TransformerSpec common_gguf(const GgufFile& file);

// The tensors of expected_tensors(spec) by their names in the file. Architectures that store rotary halves
// interleaved have them put back.
std::map<std::string, GgufName> gguf_names(const TransformerSpec& spec);

}  // namespace oscar
