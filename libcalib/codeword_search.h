// Where the nearest codewords of training rows are searched, which is what training takes its time for: the CPU, or
// a GPU through LibTorch.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace oscar {

// Groups of rows that are searched again and again. Results are those of kernels/codebook.h, to the byte, wherever
// the search runs.
class SearchedRows {
 public:
  struct Search {
    int group = 0;
    const float* words = nullptr;  // (count, g)
    uint16_t* index = nullptr;     // (n)
    float* distance = nullptr;     // (n)
  };
  virtual ~SearchedRows() = default;
  virtual void nearest(int count, std::span<const Search> searches) const = 0;
};

class CodewordSearch {
 public:
  virtual ~CodewordSearch() = default;
  virtual std::string slower() const { return {}; }  // why it is not as fast as it could be; "": it is
  // groups: (n, g) each, contiguous, which outlive the result. May be called, and its results used, by several
  // threads at a time.
  virtual std::unique_ptr<SearchedRows> hold(std::span<const float* const> groups, int64_t n,
                                             int g) const = 0;
};

const CodewordSearch& cpu_search();
// "cuda" or "cuda:N", by libdump: std::runtime_error says why LibTorch cannot use that one. nullptr for "cpu". A build
// without LibTorch has apps/no_torch.cpp instead, which says so.
std::unique_ptr<CodewordSearch> open_codeword_search(const std::string& device);

}  // namespace oscar
