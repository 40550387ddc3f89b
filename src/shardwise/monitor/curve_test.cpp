#include "shardwise/monitor/curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace shardwise::monitor {
namespace {

Curve curve_of(int count, double (*value)(int)) {
  Curve curve;
  for (int i = 1; i <= count; ++i) curve.add({static_cast<double>(i), value(i)});
  return curve;
}

TEST(Curve, KeepsShortCurvesPointByPoint) {
  const Curve curve = curve_of(1024, [](int i) { return 0.5 * i; });
  const std::vector<Line> lines = outline(curve);
  ASSERT_EQ(lines.size(), 1U);
  ASSERT_EQ(lines[0].size(), 1024U);
  for (int i = 1; i <= 1024; ++i) {
    EXPECT_EQ(lines[0][static_cast<std::size_t>(i) - 1].x, i);
    EXPECT_EQ(lines[0][static_cast<std::size_t>(i) - 1].y, 0.5 * i);
  }
}

TEST(Curve, KeepsSpikesOfAMillionPoints) {
  const Curve curve = curve_of(1'000'000, [](int i) {
    return i == 777'777 ? 50.0 : i == 333'333 ? -50.0 : std::sin(i * 0.1);
  });
  EXPECT_LE(curve.buckets().size(), Curve::kMost);
  EXPECT_GE(curve.buckets().size(), Curve::kMost / 2 - 1);
  const Line line = outline(curve).at(0);
  const auto has = [&](double x, double y) {
    return std::any_of(line.begin(), line.end(),
                       [&](const Point& point) { return point.x == x && point.y == y; });
  };
  EXPECT_TRUE(has(777'777, 50));
  EXPECT_TRUE(has(333'333, -50));
  EXPECT_TRUE(std::is_sorted(line.begin(), line.end(),
                             [](const Point& a, const Point& b) { return a.x < b.x; }));
  std::int64_t count = 0;
  for (const Bucket& bucket : curve.buckets()) count += bucket.count;
  EXPECT_EQ(count, 1'000'000);
}

TEST(Curve, BreaksWhereNothingIsFinite) {
  Curve curve;
  for (int i = 1; i <= 9; ++i) {
    curve.add({static_cast<double>(i), i == 4 ? NAN : i == 7 ? -INFINITY : 1.0}, i == 2);
  }
  const std::vector<Line> lines = outline(curve);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].size(), 3U);
  EXPECT_EQ(lines[1].size(), 2U);
  EXPECT_EQ(lines[2].size(), 2U);
  EXPECT_EQ(marked(curve), (std::vector<double>{2, 4, 7}));
  EXPECT_TRUE(outline(curve_of(5000, [](int) { return double{NAN}; })).empty());
}

TEST(Curve, SmoothingKeepsStraightLinesAndAveragesNoise) {
  const Line straight = smoothed(curve_of(1000, [](int i) { return 3.0 * i; })).at(0);
  // Without the end, where the window is one-sided.
  for (std::size_t i = 0; i < 950; ++i) EXPECT_NEAR(straight[i].y, 3.0 * straight[i].x, 1e-6);
  const Line noise = smoothed(curve_of(1000, [](int i) { return i % 2 == 0 ? 1.0 : -1.0; })).at(0);
  for (std::size_t i = 100; i < 1000; ++i) EXPECT_LT(std::fabs(noise[i].y), 0.1);
}

TEST(Curve, OnePeakDoesNotLiftTheAverage) {
  const Curve curve = curve_of(1000, [](int i) { return i == 500 ? 1e6 : 1 + 0.1 * (i % 2); });
  const Line line = smoothed(curve).at(0);
  for (const Point& point : line) {
    EXPECT_GE(point.y, 1);
    EXPECT_LE(point.y, 1.2);
  }
}

TEST(Curve, HugeNumbersStayFinite) {
  const Line line = smoothed(curve_of(3000, [](int) { return 1.7e308; })).at(0);
  for (const Point& point : line) EXPECT_TRUE(std::isfinite(point.y));
}

}  // namespace
}  // namespace shardwise::monitor
