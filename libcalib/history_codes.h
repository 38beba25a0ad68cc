// The quantised part of one KV head's cache: rows that some query of a sequence reads from codes, encoded
// once, and read by their position in the sequence.
#pragma once
#include <memory>
#include <vector>

#include "kernels/diagnose.h"
#include "libcalib/codes.h"
#include "libcalib/types.h"

namespace oscar {

class HistoryCodes {
 public:
  // rows (T, D) in the cache's basis, x forward. Encoded are sink <= s <= T - 1 - recent, the history of the
  // last query, without the transform's offset, which decode() puts back; the codec's refusals
  // (std::invalid_argument) pass through.
  HistoryCodes(const HeadCode& code, const float* rows, int64_t tokens, int dim, const Windows& windows);

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }
  size_t bytes() const { return codes_->bytes(); }
  // Rows [first, first + count) by position in the sequence. Those outside the history have no code and come
  // as zeros: the kernel reads them in whole tiles and must not use them.
  void decode(int64_t first, int64_t count, float* rows) const;
  CodeRows view() const;  // borrows *this

 private:
  void shift(float* rows, int64_t count, float sign) const;  // rows += sign * offset

  int dim_;
  int64_t first_, count_;
  std::vector<float> offset_;  // (D), or empty
  std::unique_ptr<EncodedRows> codes_;
};

// Of what the codes of a history lose, added over heads and sequences: in the model's own basis, so that
// set-ups compare; the range is the codec's own view.
struct CodeError {
  double power = 0, error = 0, range = 0;  // sums of x^2, (x - x^)^2 and max - min of a group as coded
  int64_t elements = 0, groups = 0;
  size_t bytes = 0;
  void add(const CodeError& other);
  double bits() const { return 8.0 * static_cast<double>(bytes) / static_cast<double>(elements); }
  double mse() const { return error / static_cast<double>(elements); }
  double snr() const;  // dB; infinite for exact codes
  double range_mean() const { return range / static_cast<double>(groups); }
};
// rows (T, D) in the cache's basis, as HistoryCodes was given them.
CodeError code_error(const HistoryCodes& codes, const HeadCode& code, const float* rows, int dim);

}  // namespace oscar
