// A curve of any number of points in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardwise::monitor {

struct Point {
  double x = 0, y = 0;
};

// Neighbouring points in one. Those whose y is not finite count in `marks` alone.
struct Bucket {
  double first_x = 0, last_x = 0;
  Point low, high;         // the lowest and the highest point
  double sum = 0;          // of y
  std::int64_t count = 0;  // finite points
  std::int64_t marks = 0;  // marked or not finite

  double mean() const { return sum / static_cast<double>(count); }
  double middle() const { return (first_x + last_x) / 2; }
};

// Buckets hold one point each at first. When there are `most` of them (an even number), neighbours
// are merged and new buckets take twice as many points: spikes stay visible at any length.
class Curve {
 public:
  static constexpr std::size_t kMost = 1024;  // about one a pixel of a wide chart

  explicit Curve(std::size_t most = kMost) : most_(most) {}

  void add(Point point, bool mark = false);
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  void halve();

  std::size_t most_;
  std::vector<Bucket> buckets_;
  std::int64_t per_bucket_ = 1;
  std::int64_t in_last_ = 0;
};

// The range of values, or of nearly all where a few are further from the others than ten times
// their range: those peaks would flatten everything else.
struct Range {
  double low = 0, high = 0;
  bool cut = false;
};
Range range_without_peaks(std::vector<double> values);

using Line = std::vector<Point>;  // without gaps

// The curve through the lowest and highest points, broken where nothing was finite.
std::vector<Line> outline(const Curve& curve);

// Moving average over a 25th of the curve, centred, so that nothing is late. The window shrinks
// towards the beginning, where curves are steep, and loses its right half towards the end, where
// they are flat. Peaks count as the end of range_without_peaks(). Broken like outline().
std::vector<Line> smoothed(const Curve& curve);

// The x of buckets with marks.
std::vector<double> marked(const Curve& curve);

}  // namespace shardwise::monitor
