#include "shardwise/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

namespace shardwise::data {
namespace {

std::vector<std::int64_t> all(const Permutation& order, std::int64_t size) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < size; ++i) {
    values.push_back(order(i));
  }
  return values;
}

// The chi-square statistic of counts that should be equal, as standard deviations from its mean.
template <typename Counts>
double deviation(const Counts& counts, std::size_t cells, double total) {
  const double expected = total / static_cast<double>(cells);
  double chi = static_cast<double>(cells - counts.size()) * expected;  // cells that never came
  for (const auto& [cell, count] : counts) {
    chi += (count - expected) * (count - expected) / expected;
  }
  const double freedom = static_cast<double>(cells) - 1;
  return (chi - freedom) / std::sqrt(2 * freedom);
}

TEST(Permutation, EveryNumberOnce) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= 300; ++size) {
    sizes.push_back(size);
  }
  for (const std::int64_t power : {1 << 10, 1 << 12, 1 << 15, 1 << 16}) {
    sizes.insert(sizes.end(), {power - 1, power, power + 1});
  }
  for (const std::int64_t size : sizes) {
    for (const std::uint64_t seed : {0ULL, 7ULL, ~0ULL}) {
      std::vector<std::int64_t> values = all(Permutation(size, seed, seed % 5), size);
      std::sort(values.begin(), values.end());
      for (std::int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(values[static_cast<std::size_t>(i)], i) << "size " << size << " seed " << seed;
      }
    }
  }
}

TEST(Permutation, LargeSizesStayInsideAndDoNotRepeat) {
  for (const int bits : {33, 40, 61, 62}) {
    const std::int64_t size = (std::int64_t{1} << bits) - (bits == 62 ? 0 : 12345);
    const Permutation order(size, 3, 4);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 20'000; ++i) {
      const std::int64_t value = order(size - 1 - i * 1001);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, size);
      ASSERT_TRUE(seen.insert(value).second);
    }
  }
}

TEST(Permutation, SeedAndEpochMakeTheOrder) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    return all(Permutation(1000, seed, epoch), 1000);
  };
  EXPECT_EQ(order(5, 1), order(5, 1));
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
      orders.insert(order(seed, epoch));
    }
  }
  EXPECT_EQ(orders.size(), 400U);
}

// All 24 orders of 4 and 120 of 5 come equally often. 6 standard deviations: one run in 10^8 fails
// by chance for a fair shuffle, and the seeds are fixed.
TEST(Permutation, SmallOrdersAreEquallyLikely) {
  for (const auto& [size, orders] : {std::pair{3, 6}, std::pair{4, 24}, std::pair{5, 120}}) {
    std::map<std::vector<std::int64_t>, double> counts;
    const int runs = orders * 400;
    for (int run = 0; run < runs; ++run) {
      counts[all(Permutation(size, 11, static_cast<std::uint64_t>(run)), size)] += 1;
    }
    EXPECT_LT(std::abs(deviation(counts, static_cast<std::size_t>(orders), runs)), 6.0) << size;
  }
}

// Over seeds, each place holds each number equally often, and two neighbours any pair of numbers.
TEST(Permutation, PlacesAndNeighboursAreUniform) {
  constexpr std::int64_t kSize = 37;
  constexpr int kRuns = 20'000;
  std::map<std::int64_t, double> places, pairs;
  for (int run = 0; run < kRuns; ++run) {
    const auto values = all(Permutation(kSize, static_cast<std::uint64_t>(run), 0), kSize);
    for (std::size_t i = 0; i < values.size(); ++i) {
      places[static_cast<std::int64_t>(i) * kSize + values[i]] += 1;
    }
    pairs[values[8] * kSize + values[9]] += 1;
  }
  EXPECT_LT(std::abs(deviation(places, kSize * kSize, kRuns * kSize)), 6.0);
  EXPECT_LT(std::abs(deviation(pairs, kSize * (kSize - 1), kRuns)), 6.0);
}

// Within one order of a large size: equal thirds go to equal thirds.
TEST(Permutation, OneLargeOrderIsSpread) {
  constexpr std::int64_t kSize = 90'000;
  constexpr std::int64_t kParts = 30;
  const Permutation order(kSize, 1, 0);
  std::map<std::int64_t, double> cells;
  for (std::int64_t i = 0; i < kSize; ++i) {
    cells[i * kParts / kSize * kParts + order(i) * kParts / kSize] += 1;
  }
  EXPECT_LT(std::abs(deviation(cells, kParts * kParts, kSize)), 6.0);
}

}  // namespace
}  // namespace shardwise::data
