// The inner loops of one CPU level, as a table of function pointers. dispatch.cpp chooses the
// table.
#pragma once

#include <cstdint>

#include "shardwise/kernels/scalars.h"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::cpu {

// Elements of one chunk, pointers already at the first of them.
struct UpdateRun {
  float* master;
  float* state[2];
  const void* gradient;
  void* parameter;
  std::int64_t n;
};

struct RankedSum {
  void* out;
  const void* in;  // slice r begins r · stride elements later
  int world;
  std::int64_t n;
  std::int64_t stride;
  float scale;
  bool accumulate;
};

inline constexpr int kDTypes = 3;
inline constexpr int kNoParameter = 3;  // second index of the update tables: only master is written

// Of one rule.
template <typename Scalars>
struct UpdateLoops {
  void (*update[kDTypes][kDTypes + 1])(const UpdateRun&, const Scalars&);  // [gradient][parameter]
};

struct LoopsTable : UpdateLoops<AdamScalars>,
                    UpdateLoops<SgdScalars>,
                    UpdateLoops<LionScalars>,
                    UpdateLoops<AdagradScalars> {
  double (*sum_of_squares[kDTypes])(const void* in, std::int64_t n);
  void (*sum_ranked[kDTypes][kDTypes])(const RankedSum&);  // [out][in]
};

const LoopsTable& scalar_loops();
const LoopsTable& avx2_loops();    // on other processors than x86-64: the scalar loops
const LoopsTable& avx512_loops();  // likewise

}  // namespace shardwise::kernels::cpu
