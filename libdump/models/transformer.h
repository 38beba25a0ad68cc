// A TransformerSpec with its weights, run.
#pragma once
#include <memory>

#include "libdump/models/model.h"
#include "libdump/models/transformer_spec.h"

namespace oscar {

// `weights` knows its tensors by the names of expected_tensors(); `tokenizer` makes the one that came with
// the checkpoint. Throws what weights->check() throws for a tensor that is missing, left over or of another
// shape, before any value is read.
std::unique_ptr<Model> make_transformer(TransformerSpec spec, std::unique_ptr<WeightSource> weights,
                                        std::function<std::unique_ptr<Tokenizer>()> tokenizer,
                                        Precision precision, at::Device device);

}  // namespace oscar
