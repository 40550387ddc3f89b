// What projections share in backward, however their products are carried out.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <functional>
#include <memory>
#include <vector>

#include "shardwise/models/projection.h"
#include "shardwise/params/gradient_sink.h"

namespace shardwise::models {

// [rows, size of the last dimension]
at::Tensor rows_of(const at::Tensor& x);

// A projection in autograd's graph. Outputs: x, the matrices, the biases.
class ProjectionNode : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) final;
  void release_variables() override;

 protected:
  ProjectionNode(const Result& x, const ProjectionWeights& weights);

  // The gradients of x and of the matrices, those that are wanted, from that of the result
  // [rows, sum of out].
  virtual void differentiate(torch::autograd::variable_list& all, const at::Tensor& gradient,
                             const std::vector<at::Tensor>& matrices) = 0;

  bool input_first() const { return input_first_; }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }    // of x
  const std::shared_ptr<Source>& source() const { return source_; }    // of x, or null
  const std::vector<std::int64_t>& widths() const { return widths_; }  // of the results
  // Whether some matrix was trainable in forward.
  bool trains_matrices() const;
  bool wants_x() const { return task_should_compute_output(0); }
  std::size_t wanted_matrices() const { return wanted(1); }
  // Whoever holds the gradients of the matrices may carry the product out in their place. Not where
  // somebody asked autograd for them.
  bool hand_over(const params::Product& product) const;
  // function(begin, width) gives the gradient for these columns of the result: called once where
  // all matrices are wanted, for each that is otherwise.
  using PartGradient = std::function<at::Tensor(std::int64_t begin, std::int64_t width)>;
  void put_matrices(torch::autograd::variable_list& all, const PartGradient& function) const {
    put(all, 1, function);
  }

 private:
  std::size_t wanted(std::size_t begin) const;
  void put(torch::autograd::variable_list& all, std::size_t begin,
           const PartGradient& function) const;

  std::vector<torch::autograd::SavedVariable> matrices_;
  std::shared_ptr<Source> source_;
  bool input_first_, with_bias_;
  std::vector<std::int64_t> sizes_, widths_;
};

}  // namespace shardwise::models
