#include "libcalib/codebook_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/codebook.h"
#include "libcalib/gaussian.h"

namespace oscar {
namespace {

constexpr int64_t kSeedRows = 16;  // rows a word that seeding looks at

struct Rows {
  const float* values;
  const float* weights;
  int64_t n;
  int g;
  const float* row(int64_t r) const { return values + r * g; }
};

// The first index whose running sum passes a random share of the total; -1 when all are zero.
int64_t draw(const std::vector<double>& shares, GaussianSource& random) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0), target = random.uniform() * total;
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    sum += shares[i];
    if (shares[i] > 0 && sum >= target) return static_cast<int64_t>(i);
  }
  return -1;
}

// k-means++: each word a row drawn by what the words before it lose on it.
std::vector<float> random_seeds(const Rows& rows, int count, GaussianSource& random) {
  const int64_t n = std::min(rows.n, kSeedRows * count);
  const auto source = [&](int64_t i) { return i * rows.n / n; };
  std::vector<float> words;
  std::vector<double> nearest(static_cast<size_t>(n), 1), loss(nearest.size());
  for (int c = 0; c < count; ++c) {
    for (int64_t i = 0; i < n; ++i)
      loss[static_cast<size_t>(i)] =
          nearest[static_cast<size_t>(i)] * static_cast<double>(rows.weights[source(i)]);
    const int64_t chosen = draw(loss, random);
    const float* word = rows.row(chosen < 0 ? 0 : source(chosen));
    words.insert(words.end(), word, word + rows.g);
    for (int64_t i = 0; i < n; ++i) {
      const float* x = rows.row(source(i));
      float distance = 0;
      for (int j = 0; j < rows.g; ++j) distance += (x[j] - word[j]) * (x[j] - word[j]);
      auto& least = nearest[static_cast<size_t>(i)];
      least = c == 0 ? static_cast<double>(distance) : std::min(least, static_cast<double>(distance));
    }
  }
  return words;
}

// Every `step`-th row, so that all sequences have their share.
class Subset {
 public:
  Subset(const Rows& rows, int64_t step) {
    for (int64_t r = 0; r < rows.n; r += step) {
      values_.insert(values_.end(), rows.row(r), rows.row(r) + rows.g);
      weights_.push_back(rows.weights[r]);
    }
    rows_ = {values_.data(), weights_.data(), static_cast<int64_t>(weights_.size()), rows.g};
  }
  Subset(const Subset&) = delete;
  Subset& operator=(const Subset&) = delete;
  const Rows& rows() const { return rows_; }

 private:
  std::vector<float> values_, weights_;
  Rows rows_;
};

// Which cell each row is in, and what the cells hold.
class Cells {
 public:
  Cells(const Rows& rows, std::vector<float>& words)
      : rows_(rows), words_(words), index_(size(rows.n)), distance_(size(rows.n)) {
    assign();
  }
  double loss() const { return loss_; }
  void iterate(int iterations) {
    for (int i = 0; i < iterations; ++i) {
      const double before = loss_;
      const bool whole = move();
      assign();
      if (whole && before - loss_ <= 1e-6 * before) break;
    }
  }
  // Twice as many words: each cell's, minus and plus most of its deviation along the channel where that is
  // largest.
  void split() {
    const size_t g = size(rows_.g), count = words_.size() / g;
    std::vector<double> squares(words_.size()), weights(count);
    for (size_t r = 0; r < index_.size(); ++r) {
      const double weight = rows_.weights[r];
      weights[index_[r]] += weight;
      for (size_t j = 0; j < g; ++j) {
        const double x = static_cast<double>(rows_.values[r * g + j]) - words_[index_[r] * g + j];
        squares[index_[r] * g + j] += weight * x * x;
      }
    }
    words_.insert(words_.end(), words_.begin(), words_.end());
    for (size_t c = 0; c < count; ++c) {
      const auto begin = squares.begin() + static_cast<std::ptrdiff_t>(c * g);
      const auto widest =
          static_cast<size_t>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(g)) - begin);
      const double deviation = weights[c] > 0 ? std::sqrt(squares[c * g + widest] / weights[c]) : 0;
      words_[c * g + widest] -= static_cast<float>(0.8 * deviation);
      words_[(count + c) * g + widest] += static_cast<float>(0.8 * deviation);
    }
    assign();
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  void assign() {
    nearest_codeword(rows_.values, rows_.g, rows_.n, rows_.g, words_.data(),
                     static_cast<int>(words_.size()) / rows_.g, index_.data(), 1, distance_.data());
    loss_ = 0;
    for (size_t r = 0; r < index_.size(); ++r) loss_ += static_cast<double>(rows_.weights[r]) * distance_[r];
  }
  // Words to the means of their cells; true when no cell was empty.
  bool move() {
    const size_t g = size(rows_.g), count = words_.size() / g;
    std::vector<double> sums(words_.size()), weights(count);
    for (size_t r = 0; r < index_.size(); ++r) {
      const double weight = rows_.weights[r];
      weights[index_[r]] += weight;
      for (size_t j = 0; j < g; ++j) sums[index_[r] * g + j] += weight * rows_.values[r * g + j];
    }
    std::vector<size_t> empty;
    for (size_t c = 0; c < count; ++c) {
      if (weights[c] == 0) empty.push_back(c);
      for (size_t j = 0; j < g && weights[c] > 0; ++j)
        words_[c * g + j] = static_cast<float>(sums[c * g + j] / weights[c]);
    }
    reseed(empty);
    return empty.empty();
  }
  void reseed(const std::vector<size_t>& empty) {
    if (empty.empty()) return;
    const auto served = [&](size_t r) { return static_cast<double>(rows_.weights[r]) * distance_[r]; };
    std::vector<size_t> worst(index_.size());
    std::iota(worst.begin(), worst.end(), size_t{0});
    const size_t taken = std::min(empty.size(), worst.size());
    std::partial_sort(
        worst.begin(), worst.begin() + static_cast<std::ptrdiff_t>(taken), worst.end(),
        [&](size_t a, size_t b) { return served(a) != served(b) ? served(a) > served(b) : a < b; });
    for (size_t e = 0; e < taken && served(worst[e]) > 0; ++e) {
      std::copy_n(rows_.row(static_cast<int64_t>(worst[e])), rows_.g,
                  words_.begin() + static_cast<std::ptrdiff_t>(empty[e] * size(rows_.g)));
    }
  }

  const Rows& rows_;
  std::vector<float>& words_;
  std::vector<uint16_t> index_;
  std::vector<float> distance_;
  double loss_ = 0;
};

// The weighted mean, split until there are `count`; few rows suffice while words are few.
std::vector<float> split_seeds(const Rows& rows, int count) {
  constexpr int64_t kRowsPerWord = 16;
  constexpr int kIterations = 2;
  std::vector<float> words(static_cast<size_t>(rows.g), 0.0f);
  for (int words_now = 1; words_now < count; words_now *= 2) {
    const Subset subset(rows, std::max<int64_t>(1, rows.n / (kRowsPerWord * 2 * words_now)));
    Cells cells(subset.rows(), words);
    if (words_now == 1) cells.iterate(1);
    cells.split();
    cells.iterate(kIterations);
  }
  return words;
}

}  // namespace

TrainedCodebook train_codebook(const float* values, const float* weights, int64_t n, int g, int count,
                               const TrainingOptions& options) {
  constexpr int64_t kStep = 4, kRowsPerWord = 16;  // the subset keeps at least so many rows a word
  const Rows rows{values, weights, n, g};
  const Subset subset(rows, std::clamp<int64_t>(n / (kRowsPerWord * count), 1, kStep));
  GaussianSource random(options.seed);
  TrainedCodebook best;
  for (int restart = 0; restart < options.restarts; ++restart) {
    TrainedCodebook book;
    book.words =
        restart == 0 ? split_seeds(subset.rows(), count) : random_seeds(subset.rows(), count, random);
    Cells(subset.rows(), book.words).iterate(options.iterations);
    Cells all(rows, book.words);
    all.iterate(options.refine);
    book.loss = all.loss();
    if (restart == 0 || book.loss < best.loss) best = std::move(book);
  }
  return best;
}

}  // namespace oscar
