// The arithmetic of one element, written once for every CPU level and for CUDA.
//
// Note [Same bits everywhere]
// Each formula says with fused_multiply_add where a product is fused, and no product is added or
// subtracted in any other way, except through exact_product, which the compiler cannot fuse. So
// contraction settings, vector width and device do not change a result: division and square root
// are correctly rounded on all of them.
#pragma once

#include "shardwise/kernels/inline.h"
#include "shardwise/kernels/scalars.h"

namespace shardwise::kernels {

// One element of each rule: F is float or a register of floats; g is the gradient as stored, p and
// the first Scalars::kStates of `state` are updated.

template <typename F>
SW_SHARED_INLINE void update_element(const AdamScalars& s, F g, F& p, F (&state)[2]) {
  F& m = state[0];
  F& v = state[1];
  g = exact_product(g, F(s.multiplier));
  if (s.decoupled) {
    p = p * F(s.shrink);
  } else {
    g = fused_multiply_add(F(s.decay), p, g);
  }
  if (s.lerp_from_gradient) {
    m = fused_multiply_add(F(s.lerp_weight), g - m, g);
  } else {
    m = fused_multiply_add(F(s.lerp_weight), g - m, m);
  }
  v = fused_multiply_add(F(s.one_minus_beta2) * g, g, v * F(s.beta2));
  const F denominator = fused_multiply_add(square_root(v), F(s.inverse_root), F(s.eps));
  p = fused_multiply_add(F(s.negative_step), m / denominator, p);
}

// Gradient after unscaling and decay.
template <typename F>
SW_SHARED_INLINE F sgd_gradient(const SgdScalars& s, F g, F p) {
  g = exact_product(g, F(s.multiplier));
  return s.decay != 0.0F ? fused_multiply_add(F(s.decay), p, g) : g;
}

// The momentum buffer is not read in the first step.
template <typename F>
SW_SHARED_INLINE void update_element(const SgdScalars& s, F g, F& p, F (&state)[2]) {
  F& b = state[0];
  g = sgd_gradient(s, g, p);
  if (s.first_step) {
    b = g;
  } else {
    b = fused_multiply_add(F(s.one_minus_dampening), g, F(s.momentum) * b);
  }
  g = s.nesterov ? fused_multiply_add(F(s.momentum), b, g) : b;
  p = fused_multiply_add(F(s.negative_lr), g, p);
}

template <typename F>
SW_SHARED_INLINE void update_element(const PlainSgdScalars& s, F g, F& p, F (&)[2]) {
  p = fused_multiply_add(F(s.negative_lr), sgd_gradient(s, g, p), p);
}

template <typename F>
SW_SHARED_INLINE void update_element(const LionScalars& s, F g, F& p, F (&state)[2]) {
  F& m = state[0];
  g = exact_product(g, F(s.multiplier));
  const F direction = fused_multiply_add(F(s.one_minus_beta1), g, F(s.beta1) * m);
  p = fused_multiply_add(F(s.negative_lr), sign_of(direction), exact_product(p, F(s.shrink)));
  m = fused_multiply_add(F(s.one_minus_beta2), g, F(s.beta2) * m);
}

template <typename F>
SW_SHARED_INLINE void update_element(const AdagradScalars& s, F g, F& p, F (&state)[2]) {
  F& sum = state[0];
  g = exact_product(g, F(s.multiplier));
  g = fused_multiply_add(F(s.decay), p, g);
  sum = fused_multiply_add(g, g, sum);
  p = fused_multiply_add(F(s.negative_step), g / (square_root(sum) + F(s.eps)), p);
}

// End of a sum over ranks; `old` is the former output, used only when accumulating.
template <typename F>
SW_SHARED_INLINE F scaled_sum(F sum, float scale, bool accumulate, F old) {
  return accumulate ? fused_multiply_add(F(scale), sum, old) : F(scale) * sum;
}

}  // namespace shardwise::kernels
