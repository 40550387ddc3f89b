// The inner loops of one CPU level, as a table of function pointers. dispatch.cpp chooses the
// table.
#pragma once

#include <cstdint>

#include "shardwise/kernels/scalars.h"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::cpu {

// One chunk, pointers already at its first element.
struct UpdateRun {
  float* master;
  float* state0;
  float* state1;
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

template <typename Scalars>
using UpdateLoop = void (*)(const UpdateRun&, const Scalars&);

struct LoopsTable {
  UpdateLoop<AdamScalars> adam[kDTypes][kDTypes + 1];  // [gradient][parameter]
  UpdateLoop<SgdScalars> sgd[kDTypes][kDTypes + 1];
  UpdateLoop<LionScalars> lion[kDTypes][kDTypes + 1];
  UpdateLoop<AdagradScalars> adagrad[kDTypes][kDTypes + 1];
  double (*sum_of_squares[kDTypes])(const void* in, std::int64_t n);
  void (*sum_ranked[kDTypes][kDTypes])(const RankedSum&);  // [out][in]
};

const LoopsTable& scalar_loops();
const LoopsTable& avx2_loops();    // on other processors than x86-64: the scalar loops
const LoopsTable& avx512_loops();  // likewise

}  // namespace shardwise::kernels::cpu
