#include "shardwise/monitor/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "shardwise/monitor/axis.h"

namespace shardwise::monitor {
namespace {

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> all;
  for (const double tick : axis.ticks) all.push_back(tick_label(tick, axis));
  return all;
}

using Labels = std::vector<std::string>;

TEST(Axis, TicksAreRoundAndLabelsTellThemApart) {
  EXPECT_EQ(labels(make_axis(0, 10, 5)), (Labels{"0", "2", "4", "6", "8", "10"}));
  EXPECT_EQ(labels(make_axis(1.93, 2.41, 5)), (Labels{"2.0", "2.1", "2.2", "2.3", "2.4"}));
  EXPECT_EQ(labels(make_axis(0, 3e-4, 7)),
            (Labels{"0", "0.5e-4", "1.0e-4", "1.5e-4", "2.0e-4", "2.5e-4", "3.0e-4"}));
  EXPECT_EQ(labels(make_axis(0, 12900, 7)), (Labels{"0", "2k", "4k", "6k", "8k", "10k", "12k"}));
  EXPECT_EQ(labels(make_axis(-1.2, 1.1, 4)), (Labels{"-1", "0", "1"}));
  EXPECT_EQ(labels(make_axis(1.2e6, 2.9e6, 4)), (Labels{"1.5M", "2.0M", "2.5M"}));
  EXPECT_EQ(labels(make_whole_axis(1, 3, 7)), (Labels{"1", "2", "3"}));
}

TEST(Axis, FlatRangesAreWidened) {
  const Axis flat = make_axis(2.5, 2.5, 5);
  EXPECT_LT(flat.low, 2.5);
  EXPECT_GT(flat.high, 2.5);
  EXPECT_FALSE(flat.ticks.empty());
  const Axis zero = make_axis(0, 0, 5);
  EXPECT_LT(zero.low, 0);
  EXPECT_GT(zero.high, 0);
}

TEST(Axis, AnyRangeHasFewTicksInside) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> power(-80, 99), part(-1, 1);
  for (int i = 0; i < 100000; ++i) {
    const double a = part(random) * std::pow(10, power(random));
    const double b = i % 2 == 0 ? a * (1 + part(random) * 1e-3) : part(random) * a * 100;
    const Axis axis = make_axis(std::min(a, b), std::max(a, b), 6);
    ASSERT_LE(axis.ticks.size(), 8U) << a << " " << b;
    ASSERT_GE(axis.ticks.size(), 2U) << a << " " << b;
    for (const double tick : axis.ticks) {
      ASSERT_GE(axis.share(tick), -1e-6);
      ASSERT_LE(axis.share(tick), 1 + 1e-6);
      ASSERT_LT(tick_label(tick, axis).size(), 24U);
    }
  }
}

TEST(Chart, OnlyExtremePeaksAreCut) {
  Line line;
  for (int i = 0; i < 1000; ++i) line.push_back({static_cast<double>(i), 2 + 0.001 * (i % 100)});
  Chart chart;
  chart.strong = {line};
  EXPECT_FALSE(vertical_range(chart).cut);
  chart.strong[0][500].y = 3;  // ten times the range above
  EXPECT_TRUE(vertical_range(chart).cut == false && vertical_range(chart).high == 3);
  chart.strong[0][500].y = 1000;
  EXPECT_TRUE(vertical_range(chart).cut);
  EXPECT_LT(vertical_range(chart).high, 2.5);
}

TEST(Chart, EmptyAndSinglePointChartsAreDrawn) {
  EXPECT_NE(svg_chart({}).find("nothing to show yet"), std::string::npos);
  Chart marks_only;
  marks_only.marks = {1, 2};
  EXPECT_NE(svg_chart(marks_only).find("nothing to show yet"), std::string::npos);
  Chart single;
  single.strong = {{{1, 2.5}}};
  const std::string svg = svg_chart(single);
  EXPECT_NE(svg.find("h0\""), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace shardwise::monitor
