// Gradients that are products, delivered where they belong instead of being made and copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>

namespace shardwise::params {

// The hook on a parameter's AccumulateGrad node by which whoever holds the gradients takes them. A
// layer that makes a gradient as a product may hand over the factors instead.
class GradientSink : public torch::autograd::FunctionPreHook {
 public:
  // left [rows, n] · right [n, columns] is the gradient of this parameter and, where count is more
  // than 1, of those that follow it in its segment, rows below rows. True: it was carried out, and
  // autograd gets no gradient for these parameters. False: nothing has happened.
  virtual bool take_product(std::size_t count, const at::Tensor& left, const at::Tensor& right) = 0;
};

}  // namespace shardwise::params
