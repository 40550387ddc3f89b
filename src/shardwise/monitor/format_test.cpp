#include "shardwise/monitor/format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

namespace shardwise::monitor {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The texts are Python's repr() of the same numbers.
TEST(Format, ExactHasTheFewestDigits) {
  EXPECT_EQ(exact(0.1), "0.1");
  EXPECT_EQ(exact(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(exact(1e-5), "1e-05");
  EXPECT_EQ(exact(1e22), "1e+22");
  EXPECT_EQ(exact(5e-324), "5e-324");
  EXPECT_EQ(exact(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(exact(-0.0), "-0");
  EXPECT_EQ(exact(65536), "65536");
}

TEST(Format, ExactReadsBackForAnyBits) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = exact(value);
    ASSERT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
  }
}

TEST(Format, NotFinite) {
  EXPECT_EQ(exact(kNan), "NaN");
  EXPECT_EQ(exact(kInfinity), "Infinity");
  EXPECT_EQ(exact(-kInfinity), "-Infinity");
  for (const auto format : {+[](double x) { return digits(x, 4); }, scientific, scaled}) {
    EXPECT_EQ(format(kNan), "NaN");
    EXPECT_EQ(format(kInfinity), "inf");
    EXPECT_EQ(format(-kInfinity), "-inf");
  }
  for (const double value : {kNan, kInfinity, -1.0}) EXPECT_EQ(duration(value), "?");
}

TEST(Format, Digits) {
  EXPECT_EQ(digits(2.3, 4), "2.300");
  EXPECT_EQ(digits(0.01234567, 3), "0.0123");
  EXPECT_EQ(digits(12345.6, 3), "1.23e+04");
  EXPECT_EQ(digits(1234.4, 4), "1234");
  EXPECT_EQ(digits(0, 3), "0.00");
  EXPECT_EQ(scientific(3e-4), "3.0e-04");
}

TEST(Format, BinaryBytes) {
  EXPECT_EQ(binary_bytes(0), "0 MiB");
  EXPECT_EQ(binary_bytes(std::int64_t{1023} << 20), "1023 MiB");
  EXPECT_EQ(binary_bytes(std::int64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(binary_bytes((std::int64_t{139} << 30) + (std::int64_t{1} << 29)), "139.50 GiB");
}

TEST(Format, ScaledHasThreeDigitsAtEveryBorder) {
  EXPECT_EQ(scaled(0), "0.00");
  EXPECT_EQ(scaled(9.994), "9.99");
  EXPECT_EQ(scaled(9.996), "10.0");
  EXPECT_EQ(scaled(99.96), "100");
  EXPECT_EQ(scaled(999.4), "999");
  EXPECT_EQ(scaled(999.6), "1.00k");
  EXPECT_EQ(scaled(12345), "12.3k");
  EXPECT_EQ(scaled(999'600), "1.00M");
  EXPECT_EQ(scaled(-2500), "-2.50k");
  EXPECT_EQ(scaled(3e12), "3.00T");
  EXPECT_LT(scaled(1e308).size(), 20U);
}

TEST(Format, Grouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1 000");
  EXPECT_EQ(grouped(-1234567), "-1 234 567");
  EXPECT_EQ(grouped(-123), "-123");
}

TEST(Format, DurationAtBorders) {
  EXPECT_EQ(duration(0), "0s");
  EXPECT_EQ(duration(59.4), "59s");
  EXPECT_EQ(duration(59.6), "1m00s");
  EXPECT_EQ(duration(80), "1m20s");
  EXPECT_EQ(duration(3599.6), "1h00m");
  EXPECT_EQ(duration(7500), "2h05m");
  EXPECT_EQ(duration(24 * 3600 - 1), "1d00h");
  EXPECT_EQ(duration(76 * 3600), "3d04h");
  EXPECT_LT(duration(1e300).size(), 20U);
}

}  // namespace
}  // namespace shardwise::monitor
