// One chart as inline SVG. Colours and font sizes come from the page's style sheet
// (report_style.h).
#pragma once

#include <string>
#include <vector>

#include "shardwise/monitor/curve.h"

namespace shardwise::monitor {

struct Chart {
  std::string label;        // what is drawn, for screen readers
  std::vector<Line> faint;  // in the background
  std::vector<Line> strong;
  Line points;                // with dots
  std::vector<double> marks;  // x of small triangles at the bottom
  bool from_zero = false;     // the vertical axis begins at 0 (when nothing is negative)
};

// Of the faint lines and the points, or of the strong ones where none are faint.
Range vertical_range(const Chart& chart);

std::string svg_chart(const Chart& chart);

}  // namespace shardwise::monitor
