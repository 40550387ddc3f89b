// The inner loops, written once over a level's registers. Each *_level.cpp includes this below its
// target pragma; `L` is that level's lanes struct:
//   L::F               a register of L::kWidth floats with + − · /, fused_multiply_add,
//   square_root,
//                      sign_of, exact_product and F(float) in all lanes
//   L::load(const T*)  kWidth elements of float, Half or BFloat16, as floats
//   L::store(F, T*)    the same back, rounded to nearest even
//   L::SquareSum       sixteen double lanes: add(const T* sixteen elements), store(double[16])
// Only this file's templates and always-inlined functions may be used below the pragma: an inline
// function of another header would be compiled for the wider instruction set and, merged by the
// linker, run on machines that lack it.
#pragma once

#include <type_traits>

#include "shardwise/kernels/cpu/loops_table.h"
#include "shardwise/kernels/float16.h"
#include "shardwise/kernels/formulas.h"

namespace shardwise::kernels::cpu {

// Stands for "no parameter copy".
struct Nothing {};

template <typename L, typename T>
SW_SHARED_INLINE void copy_elements(const T* from, T* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = from[i];
  }
}

template <typename L, typename T>
SW_SHARED_INLINE typename L::F load_first(const T* from, std::int64_t n) {
  if (n >= L::kWidth) {
    return L::load(from);
  }
  T buffer[L::kWidth] = {};
  copy_elements<L>(from, buffer, n);
  return L::load(buffer);
}

template <typename L, typename T>
SW_SHARED_INLINE void store_first(typename L::F value, T* to, std::int64_t n) {
  if (n >= L::kWidth) {
    L::store(value, to);
    return;
  }
  T buffer[L::kWidth];
  L::store(value, buffer);
  copy_elements<L>(buffer, to, n);
}

// The parameter's copy of the new master, unless P is Nothing.
template <typename L, typename P>
SW_SHARED_INLINE void store_parameter(typename L::F p, const UpdateRun& run, std::int64_t i,
                                      std::int64_t n) {
  if constexpr (!std::is_same_v<P, Nothing>) {
    store_first<L>(p, static_cast<P*>(run.parameter) + i, n);
  }
}

template <typename L, typename G, typename P, typename Scalars>
SW_SHARED_INLINE void update_step(const UpdateRun& run, const Scalars& s, std::int64_t i,
                                  std::int64_t n) {
  using F = typename L::F;
  F p = load_first<L>(run.master + i, n);
  F state[2] = {F(0.0F), F(0.0F)};
  for (int k = 0; k < Scalars::kStates; ++k) {
    state[k] = load_first<L>(run.state[k] + i, n);
  }
  update_element(s, load_first<L>(static_cast<const G*>(run.gradient) + i, n), p, state);
  store_first<L>(p, run.master + i, n);
  for (int k = 0; k < Scalars::kStates; ++k) {
    store_first<L>(state[k], run.state[k] + i, n);
  }
  store_parameter<L, P>(p, run, i, n);
}

template <typename L, typename G, typename P, typename Scalars>
SW_SHARED_INLINE void update_run(const UpdateRun& run, const Scalars& scalars) {
  const UpdateRun r = run;
  const Scalars s = scalars;
  std::int64_t i = 0;
  for (; i + L::kWidth <= r.n; i += L::kWidth) {
    update_step<L, G, P>(r, s, i, L::kWidth);
  }
  if (i < r.n) {
    update_step<L, G, P>(r, s, i, r.n - i);
  }
}

template <typename L, typename Scalars, typename G, typename P>
void update_loop(const UpdateRun& run, const Scalars& scalars) {
  if constexpr (!std::is_void_v<typename Scalars::Stateless>) {
    if (!scalars.keeps_state) {
      update_run<L, G, P>(run, typename Scalars::Stateless{scalars});
      return;
    }
  }
  update_run<L, G, P>(run, scalars);
}

// Element i goes to lane i mod 16 and the lanes are folded in halves: the same sum at every level.
// The product of two floats is exact in double, so fusing changes nothing.
template <typename L, typename T>
double sum_of_squares_loop(const void* in, std::int64_t n) {
  const T* from = static_cast<const T*>(in);
  typename L::SquareSum sum;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    sum.add(from + i);
  }
  if (i < n) {
    T buffer[16] = {};
    copy_elements<L>(from + i, buffer, n - i);
    sum.add(buffer);
  }
  double lanes[16];
  sum.store(lanes);
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      lanes[lane] += lanes[lane + half];
    }
  }
  return lanes[0];
}

// Adds one rank's elements to the block's sums; the last rank's pass scales and stores.
template <typename L, typename O, typename I>
SW_SHARED_INLINE void add_rank(const RankedSum& s, float* sums, std::int64_t begin, std::int64_t i,
                               std::int64_t n, int rank) {
  using F = typename L::F;
  F sum = load_first<L>(static_cast<const I*>(s.in) + rank * s.stride + begin + i, n);
  if (rank > 0) {
    sum = L::load(sums + i) + sum;
  }
  if (rank + 1 < s.world) {
    L::store(sum, sums + i);
    return;
  }
  O* out = static_cast<O*>(s.out) + begin + i;
  const F old = s.accumulate ? load_first<L>(out, n) : F(0.0F);
  store_first<L>(scaled_sum(sum, s.scale, s.accumulate, old), out, n);
}

// Blocks of 2048 elements: the sums stay in the first-level cache (8 KB) while each rank's slice is
// read as one long run, which the prefetchers follow for any number of ranks.
template <typename L, typename O, typename I>
void sum_ranked_loop(const RankedSum& ranked_sum) {
  constexpr std::int64_t kBlock = 2048;
  const RankedSum s = ranked_sum;
  alignas(64) float sums[kBlock];
  for (std::int64_t begin = 0; begin < s.n; begin += kBlock) {
    const std::int64_t n = s.n - begin < kBlock ? s.n - begin : kBlock;
    for (int rank = 0; rank < s.world; ++rank) {
      std::int64_t i = 0;
      for (; i + L::kWidth <= n; i += L::kWidth) {
        add_rank<L, O, I>(s, sums, begin, i, L::kWidth, rank);
      }
      if (i < n) {
        add_rank<L, O, I>(s, sums, begin, i, n - i, rank);
      }
    }
  }
}

template <typename L, typename Scalars>
constexpr UpdateLoops<Scalars> make_update_loops() {
#define SW_FOR_PARAMETERS(G)                                                      \
  {                                                                               \
    update_loop<L, Scalars, G, float>, update_loop<L, Scalars, G, Half>,          \
        update_loop<L, Scalars, G, BFloat16>, update_loop<L, Scalars, G, Nothing> \
  }
  return {{SW_FOR_PARAMETERS(float), SW_FOR_PARAMETERS(Half), SW_FOR_PARAMETERS(BFloat16)}};
#undef SW_FOR_PARAMETERS
}

#define SW_FOR_INPUTS(L, O) \
  {sum_ranked_loop<L, O, float>, sum_ranked_loop<L, O, Half>, sum_ranked_loop<L, O, BFloat16>}

template <typename L>
constexpr LoopsTable make_loops() {
  return LoopsTable{make_update_loops<L, AdamScalars>(),
                    make_update_loops<L, SgdScalars>(),
                    make_update_loops<L, LionScalars>(),
                    make_update_loops<L, AdagradScalars>(),
                    {sum_of_squares_loop<L, float>, sum_of_squares_loop<L, Half>,
                     sum_of_squares_loop<L, BFloat16>},
                    {SW_FOR_INPUTS(L, float), SW_FOR_INPUTS(L, Half), SW_FOR_INPUTS(L, BFloat16)}};
}

#undef SW_FOR_INPUTS

}  // namespace shardwise::kernels::cpu
