// The scalars of an update rule, made once a chunk from the group and the parameter's step count,
// and the exact operations on them; shared by the CPU and CUDA. The type of the scalars stands for
// the rule: loops and kernels are templates over it, with make_scalars and update_element
// (formulas.h) as overloads.
#pragma once

#include <cmath>
#include <cstdint>

#include "shardwise/kernels/inline.h"
#include "shardwise/kernels/update.h"

namespace shardwise::kernels {

// The CPU levels define the same operations for their registers.
SW_SHARED_INLINE float fused_multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
SW_SHARED_INLINE double fused_multiply_add(double a, double b, double c) { return ::fma(a, b, c); }
SW_SHARED_INLINE float square_root(float a) { return ::sqrtf(a); }
// 1, −1 or 0; NaN for NaN.
SW_SHARED_INLINE float sign_of(float a) {
  return a > 0.0F ? 1.0F : a < 0.0F ? -1.0F : a == 0.0F ? 0.0F : a;
}

// a · b, rounded; never fused into a following addition (Note [Same bits everywhere] in
// formulas.h).
SW_SHARED_INLINE float exact_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  float product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
#endif
}

SW_SHARED_INLINE double exact_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  double product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
#endif
}

// base^exponent by repeated squaring, the same bits on host and device (pow is not).
SW_SHARED_INLINE double integer_power(double base, std::int32_t exponent) {
  double result = 1.0;
  for (std::int32_t left = exponent; left > 0; left >>= 1) {
    if ((left & 1) != 0) {
      result = exact_product(result, base);
    }
    base = exact_product(base, base);
  }
  return result;
}

// What Adam needs for each element of one parameter, from its group and its own step count.
struct AdamScalars {
  static constexpr int kStates = 2;
  using Stateless = void;  // what stands for it where no state is kept
  float multiplier;
  float shrink;       // decoupled decay: p *= shrink
  float decay;        // coupled decay: g += decay · p
  float lerp_weight;  // m = base + lerp_weight · (g − m)
  float beta2;
  float one_minus_beta2;
  float inverse_root;  // 1 / √(1 − β2^t)
  float eps;
  float negative_step;  // −lr / (1 − β1^t)
  bool
      lerp_from_gradient;  // base is g instead of m, as torch.lerp does for weights of 0.5 and more
  bool decoupled;
};

SW_SHARED_INLINE AdamScalars make_scalars(const AdamGroup& group, std::int32_t step,
                                          float multiplier) {
  const double correction1 = group.bias_correction ? 1.0 - integer_power(group.beta1, step) : 1.0;
  const double correction2 = group.bias_correction ? 1.0 - integer_power(group.beta2, step) : 1.0;
  const double weight = 1.0 - group.beta1;
  AdamScalars s;
  s.multiplier = multiplier;
  s.shrink = static_cast<float>(fused_multiply_add(-group.lr, group.weight_decay, 1.0));
  s.decay = static_cast<float>(group.weight_decay);
  s.lerp_from_gradient = weight >= 0.5;
  s.lerp_weight = static_cast<float>(s.lerp_from_gradient ? -group.beta1 : weight);
  s.beta2 = static_cast<float>(group.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - group.beta2);
  s.inverse_root = static_cast<float>(1.0 / ::sqrt(correction2));
  s.eps = static_cast<float>(group.eps);
  s.negative_step = static_cast<float>(-group.lr / correction1);
  s.decoupled = group.decoupled_decay;
  return s;
}

struct PlainSgdScalars;

struct SgdScalars {
  static constexpr int kStates = 1;
  using Stateless = PlainSgdScalars;
  float multiplier;
  float decay;
  float momentum;
  float one_minus_dampening;
  float negative_lr;
  bool first_step;
  bool nesterov;
  bool keeps_state;  // has momentum
};

struct PlainSgdScalars : SgdScalars {
  static constexpr int kStates = 0;
  using Stateless = void;
};

SW_SHARED_INLINE SgdScalars make_scalars(const SgdGroup& group, std::int32_t step,
                                         float multiplier) {
  SgdScalars s;
  s.multiplier = multiplier;
  s.decay = static_cast<float>(group.weight_decay);
  s.momentum = static_cast<float>(group.momentum);
  s.one_minus_dampening = static_cast<float>(1.0 - group.dampening);
  s.negative_lr = static_cast<float>(-group.lr);
  s.first_step = step <= 1;
  s.nesterov = group.nesterov;
  s.keeps_state = group.momentum != 0.0;
  return s;
}

struct LionScalars {
  static constexpr int kStates = 1;
  using Stateless = void;
  float multiplier;
  float shrink;  // p *= shrink
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float negative_lr;
};

SW_SHARED_INLINE LionScalars make_scalars(const LionGroup& group, std::int32_t /*step*/,
                                          float multiplier) {
  LionScalars s;
  s.multiplier = multiplier;
  s.shrink = static_cast<float>(fused_multiply_add(-group.lr, group.weight_decay, 1.0));
  s.beta1 = static_cast<float>(group.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - group.beta1);
  s.beta2 = static_cast<float>(group.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - group.beta2);
  s.negative_lr = static_cast<float>(-group.lr);
  return s;
}

struct AdagradScalars {
  static constexpr int kStates = 1;
  using Stateless = void;
  float multiplier;
  float decay;  // g += decay · p
  float eps;
  float negative_step;  // −lr / (1 + (t − 1) · lr_decay)
};

SW_SHARED_INLINE AdagradScalars make_scalars(const AdagradGroup& group, std::int32_t step,
                                             float multiplier) {
  AdagradScalars s;
  s.multiplier = multiplier;
  s.decay = static_cast<float>(group.weight_decay);
  s.eps = static_cast<float>(group.eps);
  s.negative_step = static_cast<float>(
      -group.lr / fused_multiply_add(static_cast<double>(step - 1), group.lr_decay, 1.0));
  return s;
}

}  // namespace shardwise::kernels
