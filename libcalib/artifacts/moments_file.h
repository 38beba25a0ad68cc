// oscar_moments_rank<r>.pt, format_version 2: the sums that the serving engine's calibrator keeps, in
// float64. Per layer M_q (H, d, d) mean over tokens and query heads of q^T q, not symmetrised; k_sum (H, d)
// and M_k (H, d, d) sums over tokens; S_v (H, dv, dv) sum of e v^T v over the sum of e, e = k M_q k^T; count,
// q_scaling, rho (not read). H is the KV heads of the rank. Source of the format: the calibrator and its
// readers in FutureMLS-Lab/OSCAR (docs/file-formats.md).
#pragma once
#include <filesystem>

#include "libcalib/artifacts/statistics_file.h"

namespace oscar {

std::string moments_file_name(int rank = 0);  // "oscar_moments_rank0.pt"

// All ranks of one run, in any order: sums as those of a raw dump (qq, kk, k_sum, the sst-proxy sums), so the
// targets qqt, ktk and sst-proxy and the means of the keys; no vv, no scores, no rows. Any format_version is
// taken. std::invalid_argument for a rank that is missing, doubled or foreign; std::runtime_error, naming
// file and layer, for shapes, numbers or symmetry that cannot be.
MergedStatistics read_moments(const std::vector<std::filesystem::path>& paths);

// The one file of rank 0 of 1. prompt_sha256 is our text_digest, the SHA-256 of the token ids as bytes and
// not that of their JSON. std::invalid_argument without layers, for layers of different geometry or tokens,
// and for sums without sst-proxy. Atomic.
void write_moments(const std::filesystem::path& path, const Provenance& provenance,
                   const std::map<int, LayerStatistics>& layers);

}  // namespace oscar
