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

// Computes a result again inside of a backward. Belongs to graphs; not for use elsewhere.
class Source {
 public:
  virtual ~Source() = default;
  // The same bits as in forward. Where backward records its own graph, connected to it.
  virtual at::Tensor value() = 0;
  // Who asked last has asked: nothing needs to be kept for value() any longer.
  virtual void release() = 0;
};

// A tensor, and how to compute it again where that is cheaper than keeping it.
class Result {
 public:
  // To be kept wherever backward needs it.
  Result(at::Tensor value) : value_(std::move(value)) {}
  Result(at::Tensor value, std::shared_ptr<Source> source)
      : value_(std::move(value)), source_(std::move(source)) {}

  const at::Tensor& value() const { return value_; }
  const std::shared_ptr<Source>& source() const { return source_; }

 private:
  at::Tensor value_;
  std::shared_ptr<Source> source_;  // null: the value is kept
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

// `value`, which computation(inputs) gives too. For a fused operation that keeps `inputs` anyway
// and does not need its result: who multiplies it keeps nothing more. `inputs` are all tensors with
// a gradient that the computation reads.
Result remade(at::Tensor value, const std::vector<at::Tensor>& inputs, Computation computation);

}  // namespace shardwise::models
