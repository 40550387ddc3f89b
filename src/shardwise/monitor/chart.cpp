#include "shardwise/monitor/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "shardwise/base/check.h"
#include "shardwise/monitor/axis.h"
#include "shardwise/monitor/format.h"
#include "shardwise/monitor/text.h"

namespace shardwise::monitor {
namespace {

// In units of the view box. The left margin holds labels of six characters at the size for phones.
constexpr double kWidth = 640, kHeight = 300;
constexpr double kLeft = 76, kRight = 616, kTop = 14, kBottom = 258;
constexpr int kTicksAcross = 7, kTicksDown = 7;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

class Plot {
 public:
  Plot(Axis x, Axis y) : x_(std::move(x)), y_(std::move(y)) {}

  const Axis& x() const { return x_; }
  const Axis& y() const { return y_; }
  double across(double x) const { return kLeft + x_.share(x) * (kRight - kLeft); }
  // Far outside the chart is as good as further outside.
  double down(double y) const {
    return kBottom - std::clamp(y_.share(y), -2.0, 3.0) * (kBottom - kTop);
  }
  std::string at(const Point& point) const {
    return number(across(point.x)) + "," + number(down(point.y));
  }

 private:
  Axis x_, y_;
};

template <typename Visit>
void for_points(const Chart& chart, Visit&& visit) {
  for (const auto* lines : {&chart.faint, &chart.strong}) {
    for (const Line& line : *lines) std::for_each(line.begin(), line.end(), visit);
  }
  std::for_each(chart.points.begin(), chart.points.end(), visit);
}

Axis horizontal_axis(const Chart& chart) {
  double low = INFINITY, high = -INFINITY;
  const auto include = [&](double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  };
  for_points(chart, [&](const Point& point) { include(point.x); });
  for (const double x : chart.marks) include(x);
  if (low == high) high = low + 1;
  return make_whole_axis(low, high, kTicksAcross);
}

Axis vertical_axis(const Chart& chart) {
  const Range range = vertical_range(chart);
  const bool flat = range.low == range.high;
  const double margin = flat ? 0 : (range.high - range.low) * 0.06;
  const bool zero = chart.from_zero && range.low >= 0 && range.high > 0;
  return make_axis(zero ? 0 : range.low - margin, range.high + (flat ? range.high * 0.1 : margin),
                   kTicksDown);
}

std::string text_at(double x, double y, const char* kind, const std::string& text) {
  return concat("<text class=\"", kind, "\" x=\"", number(x), "\" y=\"", number(y), "\">", text,
                "</text>\n");
}

std::string horizontal_line(const char* kind, double y) {
  return concat("<line class=\"", kind, "\" x1=\"", kLeft, "\" x2=\"", kRight, "\" y1=\"",
                number(y), "\" y2=\"", number(y), "\"/>\n");
}

std::string axes(const Plot& plot) {
  std::string out;
  for (const double tick : plot.y().ticks) {
    const double y = plot.down(tick);
    out += horizontal_line("grid", y);
    out += text_at(kLeft - 8, y + 4, "tick y", tick_label(tick, plot.y()));
  }
  out += horizontal_line("base", kBottom);
  for (const double tick : plot.x().ticks) {
    const double x = plot.across(tick);
    out += concat("<line class=\"base\" x1=\"", number(x), "\" x2=\"", number(x), "\" y1=\"",
                  kBottom, "\" y2=\"", kBottom + 5, "\"/>\n");
    out += text_at(x, kBottom + 24, "tick", tick_label(tick, plot.x()));
  }
  return out + text_at((kLeft + kRight) / 2, kHeight - 2, "tick name", "step");
}

// One path; a piece of a single point becomes a dot (round line ends).
std::string path(const char* kind, const std::vector<Line>& lines, const Plot& plot) {
  std::string data;
  for (const Line& line : lines) {
    data += "M" + plot.at(line.front());
    if (line.size() == 1) data += "h0";
    for (std::size_t i = 1; i < line.size(); ++i) data += (i == 1 ? "L" : " ") + plot.at(line[i]);
  }
  if (data.empty()) return "";
  return concat("<path class=\"", kind, "\" d=\"", data, "\"/>\n");
}

std::string dots(const Line& points, const Plot& plot) {
  if (points.empty()) return "";
  std::string out = path("held", {points}, plot);
  for (const Point& point : points) {
    out += concat("<circle class=\"dot\" cx=\"", number(plot.across(point.x)), "\" cy=\"",
                  number(plot.down(point.y)), "\" r=\"4\"><title>step ", std::llround(point.x),
                  ": ", digits(point.y, 4), "</title></circle>\n");
  }
  return out;
}

std::string triangles(const std::vector<double>& marks, const Plot& plot) {
  if (marks.empty()) return "";
  std::string data;
  for (const double x : marks)
    data += concat("M", number(plot.across(x) - 4), ",", kBottom, "l4,-8l4,8z");
  return concat("<path class=\"mark\" d=\"", data, "\"/>\n");
}

// Invisible columns that tell their values when the pointer rests on them.
std::string readings(const Chart& chart, const Plot& plot) {
  constexpr int kColumns = 60;
  constexpr double kColumn = (kRight - kLeft) / kColumns;
  std::vector<const Point*> nearest(kColumns, nullptr);
  for (const Line& line : chart.strong) {
    for (const Point& point : line) {
      const auto column = static_cast<int>((plot.across(point.x) - kLeft) / kColumn);
      nearest[static_cast<std::size_t>(std::clamp(column, 0, kColumns - 1))] = &point;
    }
  }
  std::string out = "<g class=\"reading\">\n";
  for (int column = 0; column < kColumns; ++column) {
    const Point* point = nearest[static_cast<std::size_t>(column)];
    if (point == nullptr) continue;
    out += concat("<rect x=\"", number(kLeft + column * kColumn), "\" y=\"", kTop, "\" width=\"",
                  number(kColumn), "\" height=\"", kBottom - kTop, "\"><title>step ",
                  std::llround(point->x), ": ", digits(point->y, 4), "</title></rect>\n");
  }
  return out + "</g>\n";
}

std::string frame(const Chart& chart, const std::string& content) {
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
                "\" role=\"img\" aria-label=\"", html_text(chart.label), "\">\n", content,
                "</svg>\n");
}

bool empty(const Chart& chart) {
  bool found = false;
  for_points(chart, [&](const Point&) { found = true; });
  return !found;
}

}  // namespace

Range vertical_range(const Chart& chart) {
  std::vector<double> values;
  for (const Line& line : chart.faint.empty() ? chart.strong : chart.faint) {
    for (const Point& point : line) values.push_back(point.y);
  }
  for (const Point& point : chart.points) values.push_back(point.y);
  return range_without_peaks(std::move(values));
}

std::string svg_chart(const Chart& chart) {
  if (empty(chart)) {
    return frame(chart, text_at(kWidth / 2, kHeight / 2, "tick", "nothing to show yet"));
  }
  const Plot plot(horizontal_axis(chart), vertical_axis(chart));
  // Nested: it cuts what leaves the chart, without an id that must be unique in the page.
  const std::string inside =
      concat("<svg x=\"0\" y=\"", kTop - 4, "\" width=\"", kWidth, "\" height=\"",
             kBottom - kTop + 8, "\" viewBox=\"0 ", kTop - 4, " ", kWidth, " ", kBottom - kTop + 8,
             "\">\n", path("faint", chart.faint, plot), path("strong", chart.strong, plot),
             readings(chart, plot), dots(chart.points, plot), "</svg>\n");
  return frame(chart, axes(plot) + inside + triangles(chart.marks, plot));
}

}  // namespace shardwise::monitor
