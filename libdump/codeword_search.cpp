#include "libdump/codeword_search.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "formats/error.h"
#include "kernels/codebook_device.h"
#include "libcalib/compute_device.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

constexpr int64_t kMostScores = int64_t{1} << 26,
                  kMostDistances = int64_t{1} << 24;  // of one step: 256 and 128 MiB

// sum over i, in order, of (double(x_i) - c_i)^2, none of it fused; the other dimensions broadcast.
at::Tensor distances(const at::Tensor& x, const at::Tensor& words) {
  at::Tensor sum;
  for (int64_t i = 0; i < x.size(-1); ++i) {
    const at::Tensor difference = x.select(-1, i) - words.select(-1, i);
    sum = i == 0 ? difference.square() : sum.add_(difference.square());
  }
  return sum;
}

// Of groups of rows (A, n, g) the nearest of their words (A, count, g), int64 (A, n).
at::Tensor nearest_of(const at::Tensor& rows, const at::Tensor& words) {
  const int64_t g = rows.size(2), count = words.size(1);
  const at::Tensor norms = words.square().sum(-1);  // (A, count)
  // |c|^2 / 2 - c.x
  const at::Tensor scores = at::baddbmm(norms.unsqueeze(1), rows, words.transpose(1, 2), 0.5, -1);
  auto [best, nearest] = scores.min(-1);
  // The bound of kernels/simd/codebook.inl on what rounding does to a score and its rival's.
  const double error = 1.1 * 0x1p-23 * static_cast<double>(g + 3);
  const at::Tensor row_norms = rows.square().sum(-1), highest = norms.amax(-1, true);
  const at::Tensor reach = at::minimum((row_norms + best) * 4.2, highest) + row_norms * 0.5;
  const at::Tensor limit = best + (reach * error + 1e-36);
  const at::Tensor close = at::nonzero((scores <= limit.unsqueeze(-1)).sum(-1) != 1);  // (m, 2): group, row
  for (int64_t done = 0; done < close.size(0); done += kMostDistances / count) {
    const at::Tensor part = close.slice(0, done, done + kMostDistances / count);
    const at::Tensor group = part.select(1, 0), row = part.select(1, 1);
    const at::Tensor x = rows.index({group, row}).to(at::kDouble).unsqueeze(1);
    nearest.index_put_({group, row}, distances(x, words.index({group}).to(at::kDouble)).argmin(-1));
  }
  return nearest;
}

struct Nearest {
  at::Tensor index, distance;  // (A, n): uint16 or int64, float
};
// groups: (A) of rows (groups, n, g); words (A, count, g).
Nearest nearest_by_kernels(const at::Tensor& rows, const at::Tensor& groups, const at::Tensor& words) {
  const int64_t active = words.size(0), n = rows.size(1);
  const Nearest found{at::empty({active, n}, rows.options().dtype(at::kUInt16)),
                      at::empty({active, n}, rows.options())};
  const Status status = cuda::nearest_codewords({.n = n,
                                                 .g = static_cast<int>(rows.size(2)),
                                                 .count = static_cast<int>(words.size(1)),
                                                 .searches = static_cast<int>(active),
                                                 .rows = rows.const_data_ptr<float>(),
                                                 .group = groups.const_data_ptr<int32_t>(),
                                                 .words = words.const_data_ptr<float>(),
                                                 .index = found.index.mutable_data_ptr<uint16_t>(),
                                                 .distance = found.distance.mutable_data_ptr<float>()},
                                                stream_of(rows.device()));
  if (!status.ok()) throw failure("{}", status.what);
  return found;
}
Nearest nearest_by_operations(const at::Tensor& all_rows, const at::Tensor& groups, const at::Tensor& words) {
  const int64_t active = words.size(0), count = words.size(1);
  const at::Tensor rows = active == all_rows.size(0) ? all_rows : all_rows.index_select(0, groups);
  const int64_t n = rows.size(1), step = std::max<int64_t>(1, kMostScores / (active * count));
  std::vector<at::Tensor> parts;
  for (int64_t done = 0; done < n; done += step)
    parts.push_back(nearest_of(rows.slice(1, done, done + step), words));
  const at::Tensor index = at::cat(parts, 1);
  const at::Tensor chosen = words.gather(1, index.unsqueeze(-1).expand({active, n, rows.size(2)}));
  return {index.to(at::kUInt16), distances(rows.to(at::kDouble), chosen.to(at::kDouble)).to(at::kFloat)};
}

// The device's memory holds the rows of all that train at a time.
class TorchSearch : public CodewordSearch {
 public:
  TorchSearch(at::Device device, bool kernels) : device_(device), kernels_(kernels) {
    at::globalContext().setFloat32MatmulPrecision("highest");
  }
  std::unique_ptr<SearchedRows> hold(std::span<const float* const> groups, int64_t n, int g) const override;
  std::string slower() const override { return kernels_ || device_.is_cpu() ? "" : kernels_missing(device_); }
  at::Device device() const { return device_; }
  Nearest nearest(const at::Tensor& rows, const at::Tensor& groups, const at::Tensor& words) const {
    if (kernels_) return nearest_by_kernels(rows, groups, words);
    const std::lock_guard lock(turn_);  // scores are large
    return nearest_by_operations(rows, groups, words);
  }

 private:
  at::Device device_;
  bool kernels_;
  mutable std::mutex turn_;
};

class TorchRows : public SearchedRows {
 public:
  TorchRows(const TorchSearch& search, std::span<const float* const> groups, int64_t n, int g)
      : search_(search) {
    const c10::InferenceMode inference;
    at::Tensor rows = at::empty({static_cast<int64_t>(groups.size()), n, g}, host());
    for (size_t i = 0; i < groups.size(); ++i)
      std::memcpy(rows[static_cast<int64_t>(i)].data_ptr(), groups[i],
                  static_cast<size_t>(n * g) * sizeof(float));
    rows_ = to_device(rows, search.device());
  }
  void nearest(int count, std::span<const Search> searches) const override {
    if (searches.empty()) return;
    const c10::InferenceMode inference;
    const auto active = static_cast<int64_t>(searches.size());
    const int64_t n = rows_.size(1), g = rows_.size(2);
    at::Tensor words = at::empty({active, count, g}, host()),
               groups = at::empty({active}, host().dtype(at::kInt));
    for (int64_t a = 0; a < active; ++a) {
      const Search& search = searches[static_cast<size_t>(a)];
      std::memcpy(words[a].data_ptr(), search.words, static_cast<size_t>(count * g) * sizeof(float));
      groups.mutable_data_ptr<int32_t>()[a] = search.group;
    }
    const Nearest found =
        search_.nearest(rows_, to_device(groups, search_.device()), to_device(words, search_.device()));
    const at::Tensor index = to_cpu(found.index), distance = to_cpu(found.distance);
    for (int64_t a = 0; a < active; ++a) {
      const Search& search = searches[static_cast<size_t>(a)];
      std::copy_n(index.const_data_ptr<uint16_t>() + a * n, n, search.index);
      std::copy_n(distance.const_data_ptr<float>() + a * n, n, search.distance);
    }
  }

 private:
  at::TensorOptions host() const {
    return at::TensorOptions(at::kFloat).pinned_memory(search_.device().is_cuda());
  }
  const TorchSearch& search_;
  at::Tensor rows_;  // (groups, n, g)
};

std::unique_ptr<SearchedRows> TorchSearch::hold(std::span<const float* const> groups, int64_t n,
                                                int g) const {
  return std::make_unique<TorchRows>(*this, groups, n, g);
}

}  // namespace

std::unique_ptr<CodewordSearch> torch_search(at::Device device, bool kernels) {
  return std::make_unique<TorchSearch>(device, kernels);
}

std::unique_ptr<CodewordSearch> open_codeword_search(const std::string& device) {
  if (cuda_number(device) < 0) return nullptr;
  const at::Device on = torch_device(device);
  return torch_search(on, has_kernels(on));
}

}  // namespace oscar
