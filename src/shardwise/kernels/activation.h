// Activation functions of a feed-forward layer and their gated forms (Shazeer 2020, "GLU Variants
// Improve Transformer", https://arxiv.org/abs/2002.05202).
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

enum class ActivationKind : std::uint8_t {
  kSilu,      // x · σ(x)
  kGelu,      // x · Φ(x), with erf
  kGeluTanh,  // x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), which is x · σ(2√(2/π) (…))
};

// Input rows are [rows, width], gated [rows, 2 · width]: a row's gates, then its values. Output
// rows are [rows, width]: f(x), gated f(gate) · value. All contiguous. SwiGLU is gated kSilu, GeGLU
// gated kGelu or kGeluTanh.
struct ActivationShape {
  ActivationKind kind = ActivationKind::kSilu;
  bool gated = false;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

// Computed in fp32 (fp64 for fp64) and rounded once. Not gated, output may be input.
void activation_forward(const Place& place, const ActivationShape& shape, const void* input,
                        void* output);

// The gradient of the input from its values; nothing else of the forward pass is needed.
// input_gradient has the shape of the input and may be the input.
void activation_backward(const Place& place, const ActivationShape& shape, const void* input,
                         const void* output_gradient, void* input_gradient);

}  // namespace shardwise::kernels
