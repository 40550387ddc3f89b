#include "shardwise/monitor/curve.h"

#include <algorithm>
#include <cmath>

namespace shardwise::monitor {
namespace {

// Larger numbers are drawn as this one, so that differences and sums of them stay finite.
constexpr double kLargest = 1e100;

Bucket bucket_of(Point point, bool mark) {
  Bucket bucket;
  bucket.first_x = bucket.last_x = point.x;
  const bool finite = std::isfinite(point.y);
  bucket.marks = mark || !finite ? 1 : 0;
  if (!finite) return bucket;
  point.y = std::clamp(point.y, -kLargest, kLargest);
  bucket.low = bucket.high = point;
  bucket.sum = point.y;
  bucket.count = 1;
  return bucket;
}

void merge(Bucket& into, const Bucket& next) {
  into.last_x = next.last_x;
  into.marks += next.marks;
  if (next.count == 0) return;
  if (into.count == 0 || next.low.y < into.low.y) into.low = next.low;
  if (into.count == 0 || next.high.y > into.high.y) into.high = next.high;
  into.sum += next.sum;
  into.count += next.count;
}

// Calls `piece` with each range of buckets that all have finite points.
template <typename Piece>
void for_pieces(const std::vector<Bucket>& buckets, Piece&& piece) {
  const auto empty = [](const Bucket& bucket) { return bucket.count == 0; };
  auto at = buckets.begin();
  while (at != buckets.end()) {
    const auto start = std::find_if_not(at, buckets.end(), empty);
    at = std::find_if(start, buckets.end(), empty);
    if (start != at) piece(start, at);
  }
}

Line average(const Line& line, std::size_t most_reach) {
  std::vector<double> sums{0};
  for (const Point& point : line) sums.push_back(sums.back() + point.y);
  Line out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::size_t before = std::min(most_reach, i);
    const std::size_t after = std::min(before, line.size() - 1 - i);
    const double sum = sums[i + after + 1] - sums[i - before];
    out.push_back({line[i].x, sum / static_cast<double>(before + after + 1)});
  }
  return out;
}

}  // namespace

void Curve::add(Point point, bool mark) {
  const Bucket bucket = bucket_of(point, mark);
  if (in_last_ > 0 && in_last_ < per_bucket_) {
    merge(buckets_.back(), bucket);
    ++in_last_;
    return;
  }
  if (buckets_.size() == most_) halve();
  buckets_.push_back(bucket);
  in_last_ = 1;
}

void Curve::halve() {
  for (std::size_t i = 0; i < most_ / 2; ++i) {
    buckets_[i] = buckets_[2 * i];
    merge(buckets_[i], buckets_[2 * i + 1]);
  }
  buckets_.resize(most_ / 2);
  per_bucket_ *= 2;
}

std::vector<Line> outline(const Curve& curve) {
  std::vector<Line> lines;
  for_pieces(curve.buckets(), [&](auto begin, auto end) {
    Line line;
    for (auto bucket = begin; bucket != end; ++bucket) {
      const bool low_first = bucket->low.x <= bucket->high.x;
      line.push_back(low_first ? bucket->low : bucket->high);
      if (bucket->low.x != bucket->high.x) line.push_back(low_first ? bucket->high : bucket->low);
    }
    lines.push_back(std::move(line));
  });
  return lines;
}

Range range_without_peaks(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t rare = values.size() / 50;
  const double low = values[rare], high = values[values.size() - 1 - rare];
  const double spread = high - low;
  Range range{values.front(), values.back(), false};
  // A flat curve has no range to compare with.
  if (spread == 0) return range;
  if (range.high > high + 10 * spread) range = {range.low, high + spread, true};
  if (range.low < low - 10 * spread) range = {low - spread, range.high, true};
  return range;
}

std::vector<Line> smoothed(const Curve& curve) {
  std::vector<double> means;
  for (const Bucket& bucket : curve.buckets()) {
    if (bucket.count > 0) means.push_back(bucket.mean());
  }
  const Range range = range_without_peaks(std::move(means));
  const std::size_t reach = curve.buckets().size() / 50;
  std::vector<Line> lines;
  for_pieces(curve.buckets(), [&](auto begin, auto end) {
    Line line;
    for (auto bucket = begin; bucket != end; ++bucket) {
      line.push_back({bucket->middle(), std::clamp(bucket->mean(), range.low, range.high)});
    }
    // Twice: a triangular window, without the steps of a rectangular one.
    lines.push_back(average(average(line, reach), reach));
  });
  return lines;
}

std::vector<double> marked(const Curve& curve) {
  std::vector<double> all;
  for (const Bucket& bucket : curve.buckets()) {
    if (bucket.marks > 0) all.push_back(bucket.middle());
  }
  return all;
}

}  // namespace shardwise::monitor
