// From a Place to the loops and threads of the CPU.
#pragma once

#include <cstdint>
#include <functional>

#include "shardwise/kernels/cpu/loops_table.h"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::cpu {

// The loops of a level; InternalError if the machine lacks it.
const LoopsTable& choose_loops(CpuLevel level);

// body(begin, end) over [0, n) with the place's threads.
template <typename Body>
void for_ranges(const Place& place, std::int64_t n, std::int64_t grain, const Body& body) {
  if (n <= 0) {
    return;
  }
  if (place.parallel_for == nullptr || !*place.parallel_for || n <= grain) {
    body(std::int64_t{0}, n);
    return;
  }
  (*place.parallel_for)(n, grain, std::cref(body));
}

}  // namespace shardwise::kernels::cpu
