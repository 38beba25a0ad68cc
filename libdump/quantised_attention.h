// Attention of one sequence in one layer with a cache that is really held as codes: what takes the place of
// exact attention (Attend of libdump/models/model.h) in an end-to-end run.
#pragma once
#include "libcalib/codes.h"
#include "libdump/models/model.h"

namespace oscar {

// o (T, Hq, Dv), in the model's basis. Every KV head is transformed, encoded and attended in the cache's
// basis by one thread. A sequence that fits into the windows has no codes, and gets the bits of exact
// attention. Throws std::out_of_range for a layer that the codes lack.
void quantised_attention(const CacheCodes& codes, const Windows& windows, const AttentionRows& rows,
                         float* o);
// The same of a GPU's rows, into rows.device->o: rows are encoded and read from their codes on the CPU, by `threads`
// threads, and attended to in the model's basis there. codes = nullptr: nothing is coded.
void quantised_attention_on_device(const CacheCodes* codes, const Windows& windows, const AttentionRows& rows,
                                   int threads);

}  // namespace oscar
