// Which kernels this build and this machine have.
#pragma once

#include <string>
#include <vector>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

// "scalar", "avx2", "avx512" (kAuto: "auto").
const char* cpu_level_name(CpuLevel level);

// The level that kAuto means on this machine. AVX2 asks for AVX2, FMA and F16C; AVX-512 for F, BW,
// DQ and VL besides.
CpuLevel best_cpu_level();

// Levels that run on this machine, lowest first; the last one is best_cpu_level().
std::vector<CpuLevel> available_cpu_levels();

// Name of best_cpu_level().
std::string cpu_dispatch_level();

// Compute capabilities that the CUDA kernels were compiled for, such as {80, 90}; empty without
// CUDA.
std::vector<int> cuda_architectures();

}  // namespace shardwise::kernels
