// The nearest codewords by LibTorch's operations: float32 scores of all words say which can be the nearest, and where
// that is more than one, double arithmetic in the order of kernels/codebook.h decides.
#include "libcalib/codeword_search.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "formats/error.h"
#include "libcalib/compute_device.h"
#include "libdump/codeword_search.h"
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

// The device's memory holds the rows of all that train at a time, and the scores of one search.
class TorchSearch : public CodewordSearch {
 public:
  explicit TorchSearch(at::Device device) : device_(device) {
    at::globalContext().setFloat32MatmulPrecision("highest");
  }
  std::unique_ptr<SearchedRows> hold(std::span<const float* const> groups, int64_t n, int g) const override;
  at::Device device() const { return device_; }
  std::mutex& turn() const { return turn_; }

 private:
  at::Device device_;
  mutable std::mutex turn_;
};

class TorchRows : public SearchedRows {
 public:
  TorchRows(const TorchSearch& search, std::span<const float* const> groups, int64_t n, int g)
      : search_(search), device_(search.device()) {
    const c10::InferenceMode inference;
    at::Tensor rows = at::empty({static_cast<int64_t>(groups.size()), n, g}, at::kFloat);
    for (size_t i = 0; i < groups.size(); ++i)
      std::memcpy(rows[static_cast<int64_t>(i)].data_ptr(), groups[i],
                  static_cast<size_t>(n * g) * sizeof(float));
    rows_ = rows.to(device_);
  }
  void nearest(int count, std::span<const Search> searches) const override {
    if (searches.empty()) return;
    const c10::InferenceMode inference;
    const std::lock_guard lock(search_.turn());
    const auto active = static_cast<int64_t>(searches.size());
    const int64_t n = rows_.size(1), g = rows_.size(2);
    at::Tensor words = at::empty({active, count, g}, at::kFloat);
    at::Tensor groups = at::empty({active}, at::kLong);
    for (int64_t a = 0; a < active; ++a) {
      const Search& search = searches[static_cast<size_t>(a)];
      std::memcpy(words[a].data_ptr(), search.words, static_cast<size_t>(count * g) * sizeof(float));
      groups.data_ptr<int64_t>()[a] = search.group;
    }
    words = words.to(device_);
    const at::Tensor rows = active == rows_.size(0) ? rows_ : rows_.index_select(0, groups.to(device_));
    const int64_t step = std::max<int64_t>(1, kMostScores / (active * count));
    std::vector<at::Tensor> parts;
    for (int64_t done = 0; done < n; done += step)
      parts.push_back(nearest_of(rows.slice(1, done, done + step), words));
    const at::Tensor index = at::cat(parts, 1);
    const at::Tensor chosen = words.gather(1, index.unsqueeze(-1).expand({active, n, g}));
    const at::Tensor found = distances(rows.to(at::kDouble), chosen.to(at::kDouble)).to(at::kFloat);
    const at::Tensor indices = to_cpu(index.to(at::kInt)), lengths = to_cpu(found);
    for (int64_t a = 0; a < active; ++a) {
      const Search& search = searches[static_cast<size_t>(a)];
      std::copy_n(indices.const_data_ptr<int>() + a * n, n, search.index);
      std::copy_n(lengths.const_data_ptr<float>() + a * n, n, search.distance);
    }
  }

 private:
  const TorchSearch& search_;
  at::Device device_;
  at::Tensor rows_;  // (groups, n, g)
};

std::unique_ptr<SearchedRows> TorchSearch::hold(std::span<const float* const> groups, int64_t n,
                                                int g) const {
  return std::make_unique<TorchRows>(*this, groups, n, g);
}

}  // namespace

std::unique_ptr<CodewordSearch> torch_search(at::Device device) {
  return std::make_unique<TorchSearch>(device);
}

std::unique_ptr<CodewordSearch> open_codeword_search(const std::string& device) {
  if (cuda_number(device) < 0) return nullptr;
  return torch_search(torch_device(device));
}

}  // namespace oscar
