// Provenance as named texts: one table for the attributes of stats.h5, the metadata of .safetensors and the
// refusals of a merge.
#pragma once
#include "libcalib/statistics.h"

namespace oscar {

struct ProvenanceText {
  const char* name;
  std::string Provenance::*value;
  bool same;           // must agree between the shards of one run
  bool place = false;  // where something lies on this machine: in stats.h5 alone, so that other artifacts do
                       // not depend on it
};
inline constexpr ProvenanceText kProvenanceTexts[] = {
    {"tool_version", &Provenance::tool_version, false},
    {"model_name", &Provenance::model_name, false},
    {"model_path", &Provenance::model_path, false, true},
    {"architecture", &Provenance::architecture, true},
    {"model_digest", &Provenance::model_digest, true},
    {"tokenizer_digest", &Provenance::tokenizer_digest, true},
    {"text_digest", &Provenance::text_digest, false},
    {"bos_policy", &Provenance::bos_policy, true},
    {"rope", &Provenance::rope, true},
    {"dtype", &Provenance::dtype, true},
    {"device", &Provenance::device, false},
    {"id_space", &Provenance::id_space, true},
    {"command", &Provenance::command, false},
    {"shard", &Provenance::shard, false},
};

}  // namespace oscar
