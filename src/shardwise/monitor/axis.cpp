#include "shardwise/monitor/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace shardwise::monitor {
namespace {

// The next number of 1, 2, 5, 10, 20, ... that is at least `least`.
double round_up(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

void widen_if_flat(Axis& axis) {
  const double size = std::max(std::fabs(axis.low), std::fabs(axis.high));
  if (axis.high - axis.low > size * 1e-9 && axis.high - axis.low > 1e-90) return;
  const double margin = size > 1e-90 ? size * 0.1 : 1;
  axis.low -= margin;
  axis.high += margin;
}

Axis axis_with(double low, double high, int count, double least_spacing) {
  Axis axis{.low = low, .high = high, .spacing = 1, .ticks = {}};
  widen_if_flat(axis);
  axis.spacing = std::max(round_up((axis.high - axis.low) / count), least_spacing);
  const double first = std::ceil(axis.low / axis.spacing - 1e-9);
  for (int i = 0; (first + i) * axis.spacing <= axis.high + axis.spacing * 1e-9; ++i) {
    axis.ticks.push_back((first + i) * axis.spacing);
  }
  return axis;
}

std::string print(const char* format, int decimals, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, decimals, value);
  return text;
}

int power_of(double value) {
  return static_cast<int>(std::floor(std::log10(std::fabs(value)) + 1e-9));
}

}  // namespace

Axis make_axis(double low, double high, int count) { return axis_with(low, high, count, 0); }

Axis make_whole_axis(double low, double high, int count) { return axis_with(low, high, count, 1); }

std::string tick_label(double value, const Axis& axis) {
  if (std::fabs(value) < axis.spacing * 1e-6) return "0";
  const double largest = std::max(std::fabs(axis.low), std::fabs(axis.high));
  if (largest >= 1e15 || largest < 1e-2) {
    const int power = power_of(largest);
    const int decimals = std::clamp(power - power_of(axis.spacing), 0, 9);
    return print("%.*f", decimals, value / std::pow(10, power)) + "e" + std::to_string(power);
  }
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  const int unit = largest < 1e4 ? 0 : power_of(largest) / 3;
  const double scale = std::pow(1000, unit);
  const int decimals = std::clamp(-power_of(axis.spacing / scale), 0, 9);
  return print("%.*f", decimals, value / scale) + kUnits[unit];
}

}  // namespace shardwise::monitor
