// One rotation set as another version of its file, where that says the same.
#pragma once
#include "libcalib/rotation.h"

namespace oscar {

// 1: one orthogonal map a layer. 2: one a KV head, repeated `kv_heads` times where the set has one a layer.
// 3: anything. std::invalid_argument, with the layer, where it does not: heads that differ in 1, means or
// maps that are not orthogonal in 1 and 2, kv_heads that is missing.
RotationSet as_version(const RotationSet& set, int version, int kv_heads);

}  // namespace oscar
