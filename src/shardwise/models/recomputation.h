// Activation checkpointing: results that backward computes again instead of keeping them. The idea
// is that of Chen et al. 2016, https://arxiv.org/abs/1604.06174, section 4; keeping what is dear to
// compute that of Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 5.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace shardwise::models {

class Recomputation;

// A tensor, and how to compute it again where that is cheaper than keeping it.
class Result {
 public:
  // To be kept wherever backward needs it.
  Result(at::Tensor value) : value_(std::move(value)) {}
  Result(at::Tensor value, std::shared_ptr<Recomputation> source)
      : value_(std::move(value)), source_(std::move(source)) {}

  const at::Tensor& value() const { return value_; }
  const std::shared_ptr<Recomputation>& source() const { return source_; }

 private:
  at::Tensor value_;
  std::shared_ptr<Recomputation> source_;  // null: the value is kept
};

using Computation = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

// computation(inputs), of which the graph keeps `inputs` alone; backward computes it again, once a
// backward, with the same kernels, so that values and gradients have the same bits. `leaves`: the
// parameters that the computation reads by itself; it may not read anything else that has a
// gradient. `random`: it draws numbers from the default generator of the first input's device; the
// second run draws the same, and the generator then stands where it stood before. Without gradients
// (GradMode, or nothing that requires one) it is plain computation(inputs). What the computation
// holds on to must live as long as the graph. Gradients of gradients work. Thread-safe where the
// computation is, but for `random`, which sets the generator back for a moment.
Result recomputed(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& leaves,
                  Computation computation, bool random = false);

// x [batch, seq, in] times matrix [in, out], plus a bias [out] where one is defined: [batch, seq,
// out]. Where x can be computed again, the gradient of the matrix uses that instead of keeping x.
at::Tensor projected(const Result& x, const at::Tensor& matrix, const at::Tensor& bias);

}  // namespace shardwise::models
