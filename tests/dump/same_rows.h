// Sampled rows of two runs, or of a run and the shards of it.
#pragma once
#include <gtest/gtest.h>

#include "libcalib/statistics.h"

namespace oscar::test {

inline void expect_same_rows(const SampledRows& a, const SampledRows& b, int64_t count) {
  EXPECT_EQ(a.count(), count);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.k, b.k);
  EXPECT_EQ(a.v, b.v);
  EXPECT_EQ(a.u, b.u);
  EXPECT_EQ(a.w, b.w);
  EXPECT_EQ(a.x, b.x);
}

}  // namespace oscar::test
