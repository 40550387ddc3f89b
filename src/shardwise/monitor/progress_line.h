// A training step as one line of text.
#pragma once

#include <cstdint>
#include <string>

#include "shardwise/monitor/monitor.h"

namespace shardwise::monitor {

struct Progress {
  StepRecord record;
  std::int64_t steps = 0;    // planned; 0: unknown
  std::int64_t skipped = 0;  // steps so far
  double eta = -1;           // seconds; negative: unknown
};

// "step 120/500  loss 2.345  lr 3.0e-04  norm 0.910  12.3k tok/s  eta 1m20s"
std::string plain_line(const Progress& progress);

// The same with a bar behind the step, in at most `width` columns: the bar takes what is left, and
// where that is too little, the less important numbers are left out.
std::string bar_line(const Progress& progress, int width);

}  // namespace shardwise::monitor
