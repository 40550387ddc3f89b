// The loss of a language model's rows of logits, and its gradient in place of them.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

// Columns are counted in 32 bits, with room for one step of a block.
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 30;

struct CrossEntropyShape {
  DType dtype = DType::kFloat32;  // of the logits
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  std::int64_t row_stride = 0;  // elements; multiples of 16 bytes run fastest
};

struct CrossEntropyRule {
  std::int64_t ignored = -100;   // rows with this target: loss and gradient are 0
  double label_smoothing = 0.0;  // 0 … 1
  double z_loss = 0.0;           // adds z_loss · log²Z (Chowdhery et al. 2022, section 5)
  bool write_gradient = true;    // false: the logits stay
};

// With lse = log Σ exp x, s = label_smoothing, t the target and w the row's weight:
//   loss = w · (lse − (1 − s) · x[t] − s · mean(x) + z_loss · lse²)
//   gradient[i] = factor · w · (softmax(x)[i] · (1 + 2 · z_loss · lse) − (1 − s)·[i = t] − s /
//   vocabulary)
// in fp32 (fp64 for fp64). A target outside of 0 … vocabulary − 1 that is not `ignored` makes the
// row's loss and gradient NaN: a device cannot throw.
struct CrossEntropyArrays {
  void* logits = nullptr;                 // [rows, vocabulary]: in, and out the gradient
  const std::int64_t* targets = nullptr;  // [rows]
  const float* weights = nullptr;         // [rows]; null: 1
  const float* factor = nullptr;          // one number; null: 1
  void* losses = nullptr;                 // [rows], without the factor; fp32, fp64 for fp64 logits
};
void cross_entropy(const Place& place, const CrossEntropyShape& shape, const CrossEntropyRule& rule,
                   const CrossEntropyArrays& arrays);

// array[i] *= *factor, in fp32 (fp64 for fp64), rounded once. Leaves at once where the factor is 1:
// a gradient that was made with the right factor costs no pass over it.
void rescale(const Place& place, void* array, DType dtype, std::int64_t n, const float* factor);

}  // namespace shardwise::kernels
