// Times of the kernels at the sizes of a training step, beside a copy measured in the same run.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/kernels/types.h"

namespace shardwise::bench {

// Layers have the widths of Llama-3.2-1B: 2048, inner 8192, 32 + 2 x 8 heads of 64.
struct KernelBenchOptions {
  at::Device device = at::kCPU;
  std::int64_t tokens = 16384;       // rows of the layers' kernels
  std::int64_t vocabulary = 128256;  // of embedding and cross-entropy
  std::int64_t elements = 1 << 28;   // of copies and of the kernels at the end of a step
  kernels::CpuLevel cpu_level = kernels::CpuLevel::kAuto;
};

struct KernelTime {
  std::string name;
  double microseconds = 0;
  double bytes = 0;    // that memory must move at least; 0: the time is not that of memory
  double of_copy = 0;  // speed over these bytes as a share of a copy's; 0 without bytes
};

// Copies first; the faster one counts. On a GPU the mean of 50 launches in a row, on the CPU the
// best of 5 calls with torch's threads. Takes the device's current stream and waits for it.
std::vector<KernelTime> time_kernels(const KernelBenchOptions& options);

}  // namespace shardwise::bench
