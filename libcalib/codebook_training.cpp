#include "libcalib/codebook_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcalib/gaussian.h"

namespace oscar {
namespace {

constexpr int64_t kSeedRows = 16;  // rows a word that seeding looks at

// Rows of one group.
struct Rows {
  const float* values;
  const float* weights;
  int64_t n;
  int g;
  const float* row(int64_t r) const { return values + r * g; }
};
// Rows of all groups.
struct Groups {
  std::vector<const float*> values;
  const float* weights;
  int64_t n;
  int g;
  Rows rows(size_t group) const { return {values[group], weights, n, g}; }
};
using Words = std::vector<float>;

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
Words random_seeds(const Rows& rows, int count, GaussianSource& random) {
  const int64_t n = std::min(rows.n, kSeedRows * count);
  const auto source = [&](int64_t i) { return i * rows.n / n; };
  Words words;
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
  Subset(const Groups& all, int64_t step) : values_(all.values.size()) {
    const auto g = static_cast<size_t>(all.g);
    for (int64_t r = 0; r < all.n; r += step) weights_.push_back(all.weights[r]);
    groups_ = {{}, weights_.data(), static_cast<int64_t>(weights_.size()), all.g};
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i].reserve(weights_.size() * g);
      for (int64_t r = 0; r < all.n; r += step)
        values_[i].insert(values_[i].end(), all.values[i] + r * all.g, all.values[i] + (r + 1) * all.g);
      groups_.values.push_back(values_[i].data());
    }
  }
  Subset(const Subset&) = delete;
  Subset& operator=(const Subset&) = delete;
  const Groups& groups() const { return groups_; }

 private:
  std::vector<Words> values_;
  Words weights_;
  Groups groups_;
};

// Which cell each row of a group is in, and what the cells hold. nearest() of the rows gives index and distance
// after the words have changed.
class Cells {
 public:
  Cells(const Rows& rows, Words& words)
      : rows_(rows), words_(words), index_(size(rows.n)), distance_(size(rows.n)) {}
  int count() const { return static_cast<int>(words_.size()) / rows_.g; }
  SearchedRows::Search search(int group) { return {group, words_.data(), index_.data(), distance_.data()}; }
  double loss() const {
    double loss = 0;
    for (size_t r = 0; r < index_.size(); ++r) loss += static_cast<double>(rows_.weights[r]) * distance_[r];
    return loss;
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

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

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

  Rows rows_;
  Words& words_;
  std::vector<uint16_t> index_;
  Words distance_;
};

// The groups side by side: one search has work for a GPU.
class Clustering {
 public:
  Clustering(const Groups& groups, std::vector<Words>& words, const CodewordSearch& search)
      : rows_(search.hold(groups.values, groups.n, groups.g)) {
    for (size_t i = 0; i < words.size(); ++i) cells_.emplace_back(groups.rows(i), words[i]);
    assign(all());
  }
  double loss(size_t group) const { return loss_[group]; }
  void iterate(int iterations) {
    auto moving = all();
    for (int i = 0; i < iterations && !moving.empty(); ++i) {
      const auto before = loss_;
      std::vector<bool> whole(cells_.size());
      for (const size_t c : moving) whole[c] = cells_[c].move();
      assign(moving);
      std::erase_if(moving, [&](size_t c) { return whole[c] && before[c] - loss_[c] <= 1e-6 * before[c]; });
    }
  }
  void split() {
    for (Cells& cells : cells_) cells.split();
    assign(all());
  }

 private:
  std::vector<size_t> all() const {
    std::vector<size_t> indices(cells_.size());
    std::iota(indices.begin(), indices.end(), size_t{0});
    return indices;
  }
  void assign(const std::vector<size_t>& changed) {
    std::vector<SearchedRows::Search> searches;
    for (const size_t c : changed) searches.push_back(cells_[c].search(static_cast<int>(c)));
    rows_->nearest(cells_[0].count(), searches);
    loss_.resize(cells_.size());
    for (const size_t c : changed) loss_[c] = cells_[c].loss();
  }

  std::unique_ptr<SearchedRows> rows_;
  std::vector<Cells> cells_;
  std::vector<double> loss_;
};

// The weighted mean, split until there are `count`; few rows suffice while words are few.
std::vector<Words> split_seeds(const Groups& groups, int count, const CodewordSearch& search) {
  constexpr int64_t kRowsPerWord = 16;
  constexpr int kIterations = 2;
  std::vector<Words> words(groups.values.size(), Words(static_cast<size_t>(groups.g), 0.0f));
  for (int words_now = 1; words_now < count; words_now *= 2) {
    const Subset subset(groups, std::max<int64_t>(1, groups.n / (kRowsPerWord * 2 * words_now)));
    Clustering clustering(subset.groups(), words, search);
    if (words_now == 1) clustering.iterate(1);
    clustering.split();
    clustering.iterate(kIterations);
  }
  return words;
}

}  // namespace

std::vector<TrainedCodebook> train_codebooks(std::span<const TrainingGroup> groups, const float* weights,
                                             int64_t n, int g, int count, const TrainingOptions& options,
                                             const CodewordSearch& search) {
  constexpr int64_t kStep = 4, kRowsPerWord = 16;  // the subset keeps at least so many rows a word
  std::vector<TrainedCodebook> best(groups.size());
  if (groups.empty()) return best;
  Groups all{{}, weights, n, g};
  std::vector<GaussianSource> random;
  for (const TrainingGroup& group : groups) {
    all.values.push_back(group.rows);
    random.emplace_back(group.seed);
  }
  const Subset subset(all, std::clamp<int64_t>(n / (kRowsPerWord * count), 1, kStep));
  for (int restart = 0; restart < options.restarts; ++restart) {
    std::vector<Words> words;
    if (restart == 0) {
      words = split_seeds(subset.groups(), count, search);
    } else {
      for (size_t i = 0; i < groups.size(); ++i)
        words.push_back(random_seeds(subset.groups().rows(i), count, random[i]));
    }
    Clustering(subset.groups(), words, search).iterate(options.iterations);
    Clustering clustering(all, words, search);
    clustering.iterate(options.refine);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (restart == 0 || clustering.loss(i) < best[i].loss)
        best[i] = {std::move(words[i]), clustering.loss(i)};
    }
  }
  return best;
}

}  // namespace oscar
