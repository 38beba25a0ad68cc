// oscar_rows_rank<r>.pt, format_version 1: rows of the serving engine's calibrator, for fits that need more
// than sums. Keys and values are complete, only queries are sampled. Source of the format: its consumer and
// the tests of FutureMLS-Lab/OSCAR (docs/file-formats.md).
#pragma once
#include <filesystem>
#include <optional>

#include "formats/tensor.h"
#include "libcalib/artifacts/raw_dump.h"
#include "libcalib/artifacts/statistics_file.h"

namespace oscar {

struct RowsLayer {
  Tensor k, v;                     // (T, Hkv, Dk), (T, Hkv, Dv): BF16, F16 or F32, every token, k post-RoPE
  Tensor q_samples;                // (ceil(T / stride), Hq, Dk) F32: row s is token s * stride
  std::vector<int32_t> positions;  // (T); a sequence begins where it is not the last one's plus 1
  std::optional<double> scale{};   // of q.k; absent: 1 / sqrt(Dk)
};
struct RowsFile {
  std::string model_path, prompt_sha256;
  int64_t tokens = 0;
  int q_heads = 0, kv_heads = 0, dim_k = 0, dim_v = 0;
  int q_sample_stride = 32;
  std::map<int, RowsLayer> layers;  // by global id
};

std::string rows_file_name(int rank = 0);  // "oscar_rows_rank0.pt"

// Tensors that fit the numbers, or std::invalid_argument beginning with `where`.
void check(const RowsFile& rows, const std::string& where);

// All ranks of one run, in any order; heads are put side by side. Of one rank alone k and v stay in the
// mapped file. std::invalid_argument for a rank that is missing, doubled or foreign; std::runtime_error for
// damage.
RowsFile read_rows(const std::vector<std::filesystem::path>& paths);
// The one file of rank 0 of 1. std::invalid_argument when the tensors do not fit the numbers. Atomic.
void write_rows(const std::filesystem::path& path, const RowsFile& rows);

// Sums as those of a raw dump. qq is estimated: the sum over the sampled queries times tokens / samples; the
// sst-proxy weights use that estimate. `threads` layers at a time; the result does not depend on it.
MergedStatistics statistics_of_rows(const RowsFile& rows, int threads = 1);
// Lengths of the sequences, in order: a new one where positions[t] != positions[t - 1] + 1.
std::vector<int64_t> sequence_lengths(const std::vector<int32_t>& positions);

// Keys, values and every `stride`-th query of a raw dump, in memory in the dump's dtype. Sequences are those
// of seq_lens/, a chunk each where there are none. std::runtime_error for a dump that is not whole.
RowsFile rows_of_raw_dump(const RawDump& dump, int stride = 32);

}  // namespace oscar
