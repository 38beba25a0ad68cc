// The planner of the GPU's decode: whatever the batch, every token is somebody's, once, and nobody has much
// more than others.
#include "kernels/decode_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/device.h"

namespace oscar {
namespace {

constexpr int kMultiprocessors = 132;

struct Batch {
  std::vector<int32_t> first, end, exact;
  std::vector<int64_t> table_start, exact_start;
  DecodeBatch view() const {
    return {static_cast<int>(end.size()), first.data(), end.data(),
            table_start.data(),           exact.data(), exact_start.data()};
  }
  void add(int from, int to, int exact_tokens) {
    table_start.push_back(static_cast<int64_t>(end.size()) * 1000);
    exact_start.push_back(static_cast<int64_t>(end.size()) * 500);
    first.push_back(from);
    end.push_back(to);
    exact.push_back(exact_tokens);
  }
};

struct Made {
  cuda::DecodePlan plan;
  std::vector<uint8_t> memory;
  PlanView view;
};
Made make(const CacheFormat& f, const Batch& batch, bool fixed = false, int blocks = 0) {
  cuda::DeviceInfo device;
  device.multiprocessors = kMultiprocessors;
  const cuda::DecodePlan limits = cuda::decode_plan_limits(f, static_cast<int>(batch.end.size()), device);
  Made made{{}, std::vector<uint8_t>(static_cast<size_t>(limits.bytes)), {}};
  const Status s = plan_with(plan_costs(f), f, batch.view(), kMultiprocessors, blocks, fixed,
                             made.memory.data(), limits.bytes, &made.plan);
  EXPECT_TRUE(s.ok()) << s.what;
  EXPECT_LE(made.plan.workspace, limits.workspace);
  EXPECT_LE(made.plan.blocks, limits.blocks);
  made.view = plan_view(made.plan, plan_costs(f).run, made.memory.data());
  return made;
}

// Every token of every head exactly once; every part has a place of its own, and a job's parts lie together
// where its last block or the second kernel looks for them. Returns the most pages of a block.
int check(const CacheFormat& f, const Batch& batch, const Made& made) {
  const int run = plan_costs(f).run, runs = f.kv_heads / run;
  std::map<std::pair<int, int>, std::vector<Segment>> of;
  int most = 0;
  for (int b = 0; b < made.plan.blocks; ++b) {
    int pages = 0;
    const Segment& begin = made.view.block_segments[b];
    for (int s = 0; s < begin.count; ++s) {
      const Segment& segment = s == 0 ? begin : made.view.segments[begin.next + s - 1];
      of[{segment.sequence, segment.head}].push_back(segment);
      if (segment.end > segment.first) pages += (segment.end + 63) / 64 - segment.first / 64;
    }
    most = std::max(most, pages);
  }
  EXPECT_EQ(of.size(), batch.end.size() * runs);
  std::set<int> places, counters;
  for (auto& [key, segments] : of) {
    const auto [b, head] = key;
    const int job = b * runs + head / run, parts = static_cast<int>(segments.size()),
              counter = segments[0].counter,
              later = made.view.merge_first[job + 1] - made.view.merge_first[job];
    EXPECT_EQ(later, parts > 1 && counter < 0 ? parts : 0);
    if (later > 0) {
      EXPECT_TRUE(made.plan.second);
    }
    if (counter >= 0) {
      EXPECT_GT(parts, 1);
      EXPECT_LT(counter, made.plan.blocks);
      EXPECT_TRUE(counters.insert(counter).second);
      for (int pass = 0; pass < kMostPasses; ++pass)
        EXPECT_EQ(made.view.counters[counter * kMostPasses + pass], 0);
    }
    const int first = counter < 0 ? made.view.merge_first[job] : segments[0].first_part;
    int token = batch.first[b], exact = 0;
    for (const Segment& s : segments) {
      if (s.end > s.first) {
        EXPECT_EQ(s.first, token);
        EXPECT_TRUE(s.first % 64 == 0 || s.first == batch.first[b]);
        token = s.end;
      }
      exact += s.exact_end - s.exact;
      EXPECT_EQ(s.table, batch.table_start[b]);
      EXPECT_EQ(s.counter, counter);
      EXPECT_EQ(s.parts, parts);
      EXPECT_EQ(s.partial, parts == 1 ? -1 : first + static_cast<int>(&s - segments.data()));
      if (parts > 1) {
        EXPECT_TRUE(places.insert(s.partial).second);
        EXPECT_LT(s.partial, made.plan.partials);
      }
    }
    EXPECT_EQ(token, std::max(batch.first[b], batch.end[b])) << "sequence " << b << ", head " << head;
    EXPECT_EQ(exact, batch.exact[b]);
  }
  return most;
}

const CacheFormat kQwen{CacheLayout::native, 128, 8, 4};

TEST(DecodePlan, OneSequenceIsSpreadOverTheDevice) {
  Batch batch;
  batch.add(0, 131072, 0);
  const Made made = make(kQwen, batch);
  EXPECT_GE(made.plan.blocks, kMultiprocessors * 9 / 10);
  EXPECT_LE(check(kQwen, batch, made), 2048 * 8 / made.plan.blocks * 5 / 4);
}

TEST(DecodePlan, ABatchThatFitsIsNotCut) {
  Batch batch;
  for (int i = 0; i < 32; ++i) batch.add(0, 32768, 0);
  const Made made = make(kQwen, batch);
  EXPECT_EQ(check(kQwen, batch, made), 512);
  EXPECT_EQ(made.plan.blocks, 256);
  EXPECT_EQ(made.plan.partials, 0);
}

TEST(DecodePlan, RaggedBatchesAreBalanced) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform;
    Batch batch;
    double pages = 0;
    for (int i = 0; i < 32; ++i) {
      batch.add(0, static_cast<int>(1024 * std::pow(64.0, uniform(random))), 0);
      pages += (batch.end.back() + 63) / 64 * 8;
    }
    const Made made = make(kQwen, batch);
    EXPECT_LE(check(kQwen, batch, made), pages / made.plan.blocks * 1.25 + 16) << "seed " << seed;
  }
}

TEST(DecodePlan, AnyBatchIsCoveredOnce) {
  for (const CacheFormat& f :
       {kQwen, CacheFormat{CacheLayout::sglang, 128, 8, 4}, CacheFormat{CacheLayout::native, 256, 3, 16},
        CacheFormat{CacheLayout::sglang, 64, 6, 1}}) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
      std::mt19937 random(seed);
      Batch batch;
      for (int i = 0, n = 1 + static_cast<int>(random() % 40); i < n; ++i) {
        const int end = static_cast<int>(random() % (1u << random() % 17)), from = random() % 3 ? 0 : end / 3;
        batch.add(from, end, random() % 2 ? 0 : static_cast<int>(random() % 400));
      }
      const bool fixed = seed % 3 == 0;
      const Made made = make(f, batch, fixed, seed % 5 == 1 ? 1 + static_cast<int>(seed) : 0);
      check(f, batch, made);
      if (fixed) {
        EXPECT_EQ(made.plan.blocks, plan_costs(f).blocks_per_sm * kMultiprocessors);
      }
    }
  }
}

TEST(DecodePlan, NothingToDoIsAPlan) {
  Batch batch;
  EXPECT_EQ(make(kQwen, batch).plan.heads, 0);
  batch.add(5, 5, 0);
  const Made made = make(kQwen, batch);
  check(kQwen, batch, made);  // somebody writes the zeros
}

TEST(DecodePlan, WhatIsWrongIsRefused) {
  Batch batch;
  batch.add(0, -1, 0);
  std::vector<uint8_t> memory(1 << 20);
  cuda::DecodePlan plan;
  EXPECT_FALSE(
      plan_with(plan_costs(kQwen), kQwen, batch.view(), 132, 0, false, memory.data(), 1 << 20, &plan).ok());
  batch.end[0] = 64;
  EXPECT_FALSE(
      plan_with(plan_costs(kQwen), kQwen, batch.view(), 132, 0, false, memory.data(), 16, &plan).ok());
}

}  // namespace
}  // namespace oscar
