// Gradients that are products, delivered where they belong instead of being made and copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <vector>

namespace shardwise::params {

// A matrix that is a product, which has not been carried out.
class Product {
 public:
  virtual ~Product() = default;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t columns() const = 0;
  // Whether write() takes a place of this dtype.
  virtual bool goes_into(at::ScalarType dtype) const = 0;
  // Writes it to `place` [rows, columns], or adds it to what is there.
  virtual void write(const at::Tensor& place, bool add) const = 0;
};

// left [rows, n] · right [n, columns] of one dtype, into the same, or as fp32 sums on CUDA.
class PlainProduct : public Product {
 public:
  PlainProduct(at::Tensor left, at::Tensor right);
  std::int64_t rows() const override { return left_.size(0); }
  std::int64_t columns() const override { return right_.size(1); }
  bool goes_into(at::ScalarType dtype) const override;
  void write(const at::Tensor& place, bool add) const override;

 private:
  at::Tensor left_, right_;
};

// The hook on a parameter's AccumulateGrad node by which whoever holds the gradients takes them. A
// layer that makes a gradient as a product may hand over the product instead.
class GradientSink : public torch::autograd::FunctionPreHook {
 public:
  // The product is the gradient of the parameters of these sinks, rows below rows; this one is the
  // first. True: it was carried out, and autograd gets no gradient for these parameters. False:
  // nothing has happened.
  virtual bool take_product(const std::vector<GradientSink*>& sinks, const Product& product) = 0;
};

// That of the node an edge leads to; null where the gradient has no taker, or where others look at
// it too.
GradientSink* sole_sink(const torch::autograd::Edge& edge);

}  // namespace shardwise::params
