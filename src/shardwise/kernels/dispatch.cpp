#include "shardwise/kernels/dispatch.h"

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace shardwise::kernels {
namespace {

#if defined(__x86_64__)
// CPUID leaf 1; not every compiler's __builtin_cpu_supports knows this name.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

CpuLevel detect_cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // also asks whether the operating system saves the wide registers
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) {
    return CpuLevel::kAvx512;
  }
  if (avx2) {
    return CpuLevel::kAvx2;
  }
#endif
  return CpuLevel::kScalar;
}

}  // namespace

const char* cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar: return "scalar";
    case CpuLevel::kAvx2: return "avx2";
    case CpuLevel::kAvx512: return "avx512";
    case CpuLevel::kAuto: break;
  }
  return "auto";
}

CpuLevel best_cpu_level() {
  static const CpuLevel level = detect_cpu_level();
  return level;
}

std::vector<CpuLevel> available_cpu_levels() {
  std::vector<CpuLevel> levels;
  for (CpuLevel level : {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level <= best_cpu_level()) {
      levels.push_back(level);
    }
  }
  return levels;
}

std::string cpu_dispatch_level() { return cpu_level_name(best_cpu_level()); }

std::vector<int> cuda_architectures() { return cuda::architectures(); }

namespace cpu {

const LoopsTable& choose_loops(CpuLevel level) {
  const CpuLevel best = best_cpu_level();
  const CpuLevel chosen = level == CpuLevel::kAuto ? best : level;
  SW_CHECK(chosen <= best, "this machine lacks ", cpu_level_name(chosen), ", it has ",
           cpu_level_name(best));
  switch (chosen) {
    case CpuLevel::kAvx512: return avx512_loops();
    case CpuLevel::kAvx2: return avx2_loops();
    default: return scalar_loops();
  }
}

}  // namespace cpu
}  // namespace shardwise::kernels
