#include "libcalib/codeword_search.h"

#include <vector>

#include "kernels/codebook.h"

namespace oscar {
namespace {

class CpuRows : public SearchedRows {
 public:
  CpuRows(std::span<const float* const> groups, int64_t n, int g)
      : groups_(groups.begin(), groups.end()), n_(n), g_(g) {}
  void nearest(int count, std::span<const Search> searches) const override {
    for (const Search& s : searches) {
      nearest_codeword(groups_[static_cast<size_t>(s.group)], g_, n_, g_, s.words, count, s.index, 1,
                       s.distance);
    }
  }

 private:
  std::vector<const float*> groups_;
  int64_t n_;
  int g_;
};

class CpuSearch : public CodewordSearch {
 public:
  std::unique_ptr<SearchedRows> hold(std::span<const float* const> groups, int64_t n, int g) const override {
    return std::make_unique<CpuRows>(groups, n, g);
  }
};

}  // namespace

const CodewordSearch& cpu_search() {
  static const CpuSearch search;
  return search;
}

}  // namespace oscar
