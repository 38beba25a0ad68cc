#include "libdump/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "formats/error.h"

namespace oscar {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t bos = 1;

// The tests' tokenizer: each character is its code; '^' is BOS written in text.
Ids encode(const std::string& text) {
  Ids ids;
  for (const char c : text) ids.push_back(c == '^' ? bos : static_cast<uint8_t>(c));
  return ids;
}

Document counting(int32_t from, int32_t count) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}
std::vector<Document> texts(const std::vector<std::string>& all) {
  return {all.begin(), all.end()};
}

SequenceSet make(const std::vector<Document>& corpus, const SequenceOptions& options,
                 const std::vector<Document>& probes = {}) {
  return make_sequences(corpus, probes, encode, options);
}
Ids joined(const std::vector<Ids>& sequences) {
  Ids all;
  for (const auto& s : sequences) all.insert(all.end(), s.begin(), s.end());
  return all;
}
std::vector<size_t> lengths(const std::vector<Ids>& sequences) {
  std::vector<size_t> all;
  for (const auto& s : sequences) all.push_back(s.size());
  return all;
}
using Lengths = std::vector<size_t>;

TEST(Sequences, PackedUsesEveryTokenOnceInOrder) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto length = static_cast<int64_t>(2 + random() % 20);
    std::vector<Document> corpus;
    int32_t total = 0;
    for (size_t documents = 1 + random() % 6; documents--;) {
      const auto n = static_cast<int32_t>(1 + random() % 40);
      corpus.push_back(counting(total, n));
      total += n;
    }
    if (total < length) continue;
    const auto probes = static_cast<int64_t>(random() % static_cast<uint32_t>(total / length));
    const auto set = make(corpus, {.length = length, .min_length = 1, .probes = probes});
    Ids all = joined(set.calibration);
    for (const auto& s : set.calibration) EXPECT_EQ(length, std::ssize(s));
    for (const auto& s : set.probes) EXPECT_EQ(length, std::ssize(s));
    EXPECT_EQ(probes, std::ssize(set.probes));
    const Ids held_out = joined(set.probes);
    all.insert(all.end(), held_out.begin(), held_out.end());
    Ids expected(static_cast<size_t>(total / length * length));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(expected, all);
    EXPECT_EQ(0, set.repeated);
  }
}

TEST(Sequences, DocumentsAreNeverJoined) {
  const auto set = make({counting(0, 25), counting(100, 9), counting(200, 13), counting(300, 2)},
                        {.length = 10, .min_length = 3, .packing = Packing::Documents});
  EXPECT_EQ((Lengths{10, 10, 5, 9, 10, 3}), lengths(set.calibration));
  EXPECT_EQ(100, set.calibration[3][0]);
}

TEST(Sequences, ShortPiecesOfDocumentsAreDropped) {
  const auto set = make({counting(0, 12), counting(100, 1)},
                        {.length = 10, .min_length = 3, .packing = Packing::Documents});
  EXPECT_EQ((Lengths{10}), lengths(set.calibration));
}

TEST(Sequences, BudgetsAreExact) {
  for (int64_t tokens = 3; tokens <= 100; ++tokens) {
    const auto set = make({counting(0, 100)}, {.length = 10, .tokens = tokens, .min_length = 3});
    const int64_t rest = tokens % 10;
    EXPECT_EQ(rest >= 3 ? tokens : tokens - rest, set.tokens()) << tokens;
  }
}

TEST(Sequences, WhatIsLeftOverServesABudgetThatNeedsIt) {
  EXPECT_EQ((Lengths{10, 10}), lengths(make({counting(0, 27)}, {.length = 10, .min_length = 3}).calibration));
  EXPECT_EQ((Lengths{10, 10, 7}),
            lengths(make({counting(0, 27)}, {.length = 10, .tokens = 27, .min_length = 3}).calibration));
  EXPECT_EQ((Lengths{10, 10, 4}),
            lengths(make({counting(0, 27)}, {.length = 10, .tokens = 24, .min_length = 3}).calibration));
}

TEST(Sequences, TextShorterThanASequenceIsTooLittle) {
  EXPECT_THROW(make({counting(0, 7)}, {.length = 10, .min_length = 3}), Wanting);
  EXPECT_EQ((Lengths{7}), lengths(make({counting(0, 7)}, {.length = 10, .min_length = 3, .packing = Packing::Documents}).calibration));
}

TEST(Sequences, ProbesAreTheLastSequences) {
  const auto set = make({counting(0, 57)}, {.length = 10, .tokens = 20, .min_length = 3, .probes = 2});
  EXPECT_EQ((Lengths{10, 10}), lengths(set.calibration));
  ASSERT_EQ((Lengths{10, 10}), lengths(set.probes));
  EXPECT_EQ(30, set.probes[0][0]);
  EXPECT_EQ(20, set.probe_tokens());
}

TEST(Sequences, AProbeCorpusIsUsedWhole) {
  const auto set = make({counting(0, 30)}, {.length = 10, .min_length = 3, .probes = 1}, {counting(100, 25)});
  EXPECT_EQ(3u, set.calibration.size());
  EXPECT_EQ((Lengths{10, 10}), lengths(set.probes));
  EXPECT_EQ(100, set.probes[0][0]);
}

TEST(Sequences, RepeatedProbeTokensAreCounted) {
  const auto ids = std::get<Ids>(counting(0, 100));
  Ids again(ids.begin() + 20, ids.begin() + 60);  // 40 tokens that calibration has, 24 that it has not
  for (int32_t i = 0; i < 24; ++i) again.push_back(1000 + i);
  const auto set = make({ids}, {.length = 64, .tokens = 100, .min_length = 10}, {Document(again)});
  EXPECT_EQ(40, set.repeated);
  EXPECT_EQ(64, set.probe_tokens());
}

TEST(SequencesBos, NoneAddsNothing) {
  EXPECT_EQ(encode("abcdef"),
            joined(make(texts({"abc", "def"}), {.length = 3, .min_length = 1}).calibration));
}

TEST(SequencesBos, PerDocumentInPackedText) {
  const auto set =
      make(texts({"abc", "^def", "gh"}),
           {.length = 4, .tokens = 11, .min_length = 1, .bos_policy = BosPolicy::PerDocument, .bos = bos});
  EXPECT_EQ(encode("^abc^def^gh"), joined(set.calibration)) << "text that begins with BOS gets no second one";
}

TEST(SequencesBos, PerDocumentInDocuments) {
  const auto set = make(texts({"abcde", "fg"}), {.length = 4,
                                                 .min_length = 2,
                                                 .packing = Packing::Documents,
                                                 .bos_policy = BosPolicy::PerDocument,
                                                 .bos = bos});
  EXPECT_EQ((std::vector<Ids>{encode("^abc"), encode("de"), encode("^fg")}), set.calibration);
}

TEST(SequencesBos, PerSequenceCountsTowardsTheLength) {
  const auto set = make(texts({"abcd", "ef"}),
                        {.length = 4, .min_length = 2, .bos_policy = BosPolicy::PerSequence, .bos = bos});
  EXPECT_EQ((std::vector<Ids>{encode("^abc"), encode("^def")}), set.calibration);
}

TEST(SequencesBos, PerSequenceNeverTwice) {
  const auto set = make(texts({"^abc^def"}),
                        {.length = 4, .min_length = 2, .bos_policy = BosPolicy::PerSequence, .bos = bos});
  EXPECT_EQ((std::vector<Ids>{encode("^abc"), encode("^def")}), set.calibration);
}

TEST(SequencesBos, IdsAreTakenAsTheyAre) {
  for (const auto policy : {BosPolicy::PerDocument, BosPolicy::PerSequence}) {
    for (const auto packing : {Packing::Packed, Packing::Documents}) {
      const auto set =
          make({counting(10, 8), counting(30, 8)},
               {.length = 4, .min_length = 1, .packing = packing, .bos_policy = policy, .bos = bos});
      EXPECT_EQ(16, set.tokens());
      EXPECT_EQ(0, std::ranges::count(joined(set.calibration), bos));
    }
  }
}

TEST(SequencesDigest, ChangesWithIdsAndWithCuts) {
  const std::vector<Ids> a{{1, 2}, {3}}, b{{1}, {2, 3}}, c{{1, 2}, {4}};
  EXPECT_EQ(digest(a), digest(std::vector<Ids>{{1, 2}, {3}}));
  EXPECT_NE(digest(a), digest(b));
  EXPECT_NE(digest(a), digest(c));
  EXPECT_EQ(64u, digest(a).size());
}

void refuses(const std::vector<Document>& corpus, const SequenceOptions& options,
             const std::vector<Document>& probes, const std::vector<std::string>& words) {
  try {
    make(corpus, options, probes);
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& e) {
    for (const auto& word : words) EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what();
  }
}
void wants(const std::vector<Document>& corpus, const SequenceOptions& options,
           const std::vector<Document>& probes, const std::vector<std::string>& words) {
  try {
    make(corpus, options, probes);
    ADD_FAILURE() << "accepted";
  } catch (const Wanting& e) {
    for (const auto& word : words) EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what();
  }
}

TEST(SequencesRefuse, AnIdOutsideTheVocabularyWithItsSource) {
  Document document = counting(0, 20);
  document.source = "ids.npy: row 3";
  refuses({document}, {.length = 10, .min_length = 1, .vocabulary = 19}, {},
          {"ids.npy: row 3", "position 19", "19"});
}
TEST(SequencesRefuse, ANegativeId) {
  refuses({counting(-1, 20)}, {.length = 10, .min_length = 1}, {}, {"document 0", "position 0"});
}
TEST(SequencesRefuse, ALengthOfOne) {
  refuses({counting(0, 9)}, {.length = 1, .min_length = 1}, {}, {"length 1"});
}
TEST(SequencesRefuse, AMinimumAboveTheLength) {
  refuses({counting(0, 9)}, {.length = 4, .min_length = 5}, {}, {"minimum length 5"});
}
TEST(SequencesRefuse, ABudgetBelowTheMinimum) {
  refuses({counting(0, 9)}, {.length = 4, .tokens = 1, .min_length = 2}, {}, {"at least 2"});
}
TEST(SequencesRefuse, ANegativeBudget) {
  refuses({counting(0, 9)}, {.length = 4, .tokens = -1, .min_length = 2}, {}, {"-1"});
}
TEST(SequencesRefuse, NegativeProbes) {
  refuses({counting(0, 9)}, {.length = 4, .min_length = 2, .probes = -1}, {}, {"-1 probe"});
}
TEST(SequencesRefuse, ABosPolicyWithoutBos) {
  refuses({counting(0, 9)}, {.length = 4, .min_length = 2, .bos_policy = BosPolicy::PerSequence}, {},
          {"'sequence'", "no BOS"});
}
TEST(SequencesRefuse, AProbeThatIsAlsoCalibration) {
  refuses({counting(0, 20)}, {.length = 10, .min_length = 1}, {counting(10, 10)},
          {"probe sequence 0", "held out"});
}
TEST(SequencesRefuse, ARepeatedCorpusThatGivesTheSameProbe) {
  refuses({counting(0, 10), counting(0, 10)}, {.length = 10, .min_length = 1, .probes = 1}, {},
          {"also a calibration sequence"});
}

TEST(SequencesWant, OneSequence) {
  wants({counting(0, 5)}, {.length = 10, .min_length = 6}, {}, {"5 tokens", "0 sequences"});
}
TEST(SequencesWant, TheBudget) {
  wants({counting(0, 55)}, {.length = 10, .tokens = 100, .min_length = 4}, {},
        {"55 tokens", "100 were asked for"});
}
TEST(SequencesWant, TheBudgetBesideTheProbes) {
  wants({counting(0, 50)}, {.length = 10, .tokens = 50, .min_length = 4, .probes = 1}, {},
        {"40 tokens", "beside the probes", "50"});
}
TEST(SequencesWant, TheProbesAndOneMore) {
  wants({counting(0, 29)}, {.length = 10, .min_length = 4, .probes = 2}, {}, {"needed 2", "2 sequences"});
}
TEST(SequencesWant, AProbeSequence) {
  wants({counting(0, 30)}, {.length = 10, .min_length = 4}, {counting(50, 3)}, {"probe text", "3 tokens"});
}

}  // namespace
}  // namespace oscar
