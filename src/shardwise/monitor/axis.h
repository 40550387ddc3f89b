// Ranges and round tick values of charts.
#pragma once

#include <string>
#include <vector>

namespace shardwise::monitor {

struct Axis {
  double low = 0, high = 1;
  double spacing = 1;         // of the ticks: 1, 2 or 5 times a power of ten
  std::vector<double> ticks;  // multiples of spacing in [low, high]

  // 0 at `low`, 1 at `high`.
  double share(double value) const { return (value - low) / (high - low); }
};

// An axis with about `count` ticks. Where the two are (nearly) the same, the range around them.
Axis make_axis(double low, double high, int count);
// The same for whole numbers: ticks are at least 1 apart.
Axis make_whole_axis(double low, double high, int count);

// The value with the digits that tell it from its neighbours, in one notation for the whole axis:
// "0.25", "12k", "2.5e-4".
std::string tick_label(double value, const Axis& axis);

}  // namespace shardwise::monitor
