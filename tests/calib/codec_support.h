// Rows through a codec and through its rule in double, and codebooks of random words.
#pragma once
#include <memory>

#include "libcalib/codecs/codec.h"
#include "tests/support/support.h"

namespace oscar::test {

inline std::vector<float> decoded(const CodecInfo& codec, const std::vector<float>& rows, int dim,
                                  const CodecOptions& options) {
  const auto n = static_cast<int64_t>(rows.size()) / dim;
  const auto codes = codec.encode(rows.data(), n, dim, options);
  std::vector<float> out(rows.size());
  codes->decode(0, n, out.data());
  return out;
}

inline std::vector<double> reference(const CodecInfo& codec, const std::vector<float>& rows, int dim,
                                     const CodecOptions& options) {
  const std::vector<double> exact(rows.begin(), rows.end());
  std::vector<double> out(rows.size());
  codec.reference(exact.data(), static_cast<int64_t>(rows.size()) / dim, dim, options, out.data());
  return out;
}

// Groups of {channels, bits}, with random words.
inline Codebook codebook(const std::vector<std::pair<int, int>>& shapes, bool norm = false) {
  Codebook book{.groups = {}, .norm = norm};
  for (const auto& [size, bits] : shapes) {
    book.groups.push_back(
        {size, bits, normal((size_t{1} << bits) * static_cast<size_t>(size), 100 + book.groups.size())});
  }
  return book;
}
inline Codebook codebook(int dim, int size, int bits, bool norm = false) {
  return codebook(std::vector(static_cast<size_t>(dim / size), std::pair{size, bits}), norm);
}
inline CodecOptions vector_options(Codebook book) {
  return {.codebook = std::make_shared<Codebook>(std::move(book))};
}

}  // namespace oscar::test
