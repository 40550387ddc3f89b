#include "shardwise/ops/joined_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "joined_linear";
constexpr std::size_t kMost = 3;

void check(const Tensor& x, TensorList weights, TensorList biases) {
  SW_USER_CHECK(UsageError, !weights.empty() && weights.size() <= kMost, kName, ": there are ",
                weights.size(), " weights; there must be 1 to ", kMost);
  SW_USER_CHECK(UsageError, biases.empty() || biases.size() == weights.size(), kName,
                ": there are ", biases.size(), " biases for ", weights.size(), " weights");
  for (const Tensor& weight : weights) {
    check_device(weight, x, kName, "a weight");
    SW_USER_CHECK(UsageError,
                  x.dim() >= 1 && weight.dim() == 2 && weight.size(1) == x.size(-1) &&
                      weight.scalar_type() == x.scalar_type(),
                  kName, ": x is ", x.scalar_type(), x.sizes(), ", a weight is ",
                  weight.scalar_type(), weight.sizes(),
                  "; they must be [..., in] and [out, in] of one dtype");
  }
  for (std::size_t i = 0; i < biases.size(); ++i) {
    check_device(biases[i], x, kName, "a bias");
    SW_USER_CHECK(UsageError, biases[i].dim() == 1 && biases[i].size(0) == weights[i].size(0),
                  kName, ": a bias of shape ", biases[i].sizes(), " does not fit a weight of ",
                  weights[i].sizes());
  }
}

// The one tensor that contiguous tensors with equal rows are together, without a copy; undefined
// where they are no neighbours.
Tensor neighbours(TensorList parts) {
  const Tensor& first = parts[0];
  std::int64_t rows = 0;
  std::int64_t end = first.storage_offset();
  for (const Tensor& part : parts) {
    if (!part.is_contiguous() || !part.storage().is_alias_of(first.storage()) ||
        part.storage_offset() != end) {
      return {};
    }
    end += part.numel();
    rows += part.size(0);
  }
  at::DimVector sizes(first.sizes());
  sizes[0] = rows;
  return first.as_strided(sizes, first.strides(), first.storage_offset());
}

Tensor flat_rows(const Tensor& x) { return x.reshape_symint({-1, x.sym_size(-1)}); }

void multiply(Tensor result, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (bias.defined()) {
    at::addmm_out(result, bias, x, weight.t());
  } else {
    at::mm_out(result, x, weight.t());
  }
}

std::vector<Tensor> present(std::initializer_list<OptionalTensor> tensors) {
  std::vector<Tensor> some;
  for (const OptionalTensor& tensor : tensors) {
    if (tensor && tensor->defined()) {
      some.push_back(*tensor);
    }
  }
  return some;
}

OptionalTensor if_any(TensorList list, std::size_t index) {
  return index < list.size() ? OptionalTensor(list[index]) : std::nullopt;
}

Tensor element(TensorList list, std::size_t index) {
  return index < list.size() ? list[index] : Tensor();
}

// Columns of `joined` that belong to each weight.
std::vector<Tensor> columns_of(const Tensor& joined, TensorList weights) {
  std::vector<Tensor> columns;
  c10::SymInt begin = 0;
  for (const Tensor& weight : weights) {
    columns.push_back(joined.narrow_symint(-1, begin, weight.sym_size(0)));
    begin = begin + weight.sym_size(0);
  }
  return columns;
}

// Gradients of up to three tensors side by side in one, for those that want theirs.
void hand_out(const Tensor& joined, TensorList weights, const std::vector<bool>& wanted,
              std::size_t place, variable_list& results) {
  c10::SymInt begin = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const c10::SymInt rows = weights[i].sym_size(0);
    if (wanted[i]) {
      results[place + i] = joined.narrow_symint(0, begin, rows);
    }
    begin = begin + rows;
  }
}

// One product where all weights want their gradient, else one each.
void weight_gradients(const Tensor& gradient, const Tensor& x, TensorList weights,
                      const std::vector<bool>& wanted, variable_list& results) {
  if (std::find(wanted.begin(), wanted.end(), false) == wanted.end()) {
    hand_out(at::mm(gradient.t(), x), weights, wanted, 1, results);
    return;
  }
  const std::vector<Tensor> columns = columns_of(gradient, weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (wanted[i]) {
      results[1 + i] = at::mm(columns[i].t(), x);
    }
  }
}

struct JoinedLinearFunction : torch::autograd::Function<JoinedLinearFunction> {
  // NOLINTNEXTLINE(readability-function-size): autograd sees tensors that are arguments alone
  static Tensor forward(AutogradContext* context, const Tensor& x, const OptionalTensor& w0,
                        const OptionalTensor& w1, const OptionalTensor& w2,
                        const OptionalTensor& b0, const OptionalTensor& b1,
                        const OptionalTensor& b2) {
    context->save_for_backward(
        {x, value_or_undefined(w0), value_or_undefined(w1), value_or_undefined(w2)});
    const std::vector<Tensor> weights = present({w0, w1, w2});
    const std::vector<Tensor> biases = present({b0, b1, b2});
    const auto wants = [](const std::vector<Tensor>& tensors) {
      std::vector<bool> flags;
      for (const Tensor& tensor : tensors) {
        flags.push_back(tensor.requires_grad());
      }
      return flags;
    };
    context->saved_data["x"] = x.requires_grad();
    context->saved_data["weights"] = wants(weights);
    context->saved_data["biases"] = wants(biases);
    return call_op("shardwise::joined_linear_forward", &joined_linear_forward, x, weights, biases);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<Tensor> weights = present({saved[1], saved[2], saved[3]});
    const Tensor& gradient = gradients[0];
    const Tensor rows = flat_rows(gradient);
    variable_list results(1 + 2 * kMost);
    if (context->saved_data["x"].toBool()) {
      results[0] = input_gradient(gradient, weights);
    }
    const auto flags = [&](const char* name) {
      const c10::List<bool> list = context->saved_data[name].toBoolList();
      return std::vector<bool>(list.begin(), list.end());
    };
    weight_gradients(rows, flat_rows(saved[0]), weights, flags("weights"), results);
    const std::vector<bool> of_biases = flags("biases");
    if (std::find(of_biases.begin(), of_biases.end(), true) != of_biases.end()) {
      hand_out(rows.sum(0), weights, of_biases, 1 + kMost, results);
    }
    return results;
  }

 private:
  static Tensor input_gradient(const Tensor& gradient, TensorList weights) {
    if (!at::GradMode::is_enabled()) {
      return call_op("shardwise::joined_linear_backward_input", &joined_linear_backward_input,
                     gradient, weights);
    }
    // Of ops that can be differentiated again.
    const std::vector<Tensor> columns = columns_of(gradient, weights);
    Tensor sum = at::matmul(columns[0], weights[0]);
    for (std::size_t i = 1; i < weights.size(); ++i) {
      sum = sum + at::matmul(columns[i], weights[i]);
    }
    return sum;
  }
};

}  // namespace

Tensor joined_linear_forward_shapes(const Tensor& x, TensorList weights, TensorList) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.back() = 0;
  for (const Tensor& weight : weights) {
    sizes.back() = sizes.back() + weight.sym_size(0);
  }
  return at::empty_symint(sizes, x.options());
}

Tensor joined_linear_forward(const Tensor& x, TensorList weights, TensorList biases) {
  check(x, weights, biases);
  const c10::DeviceGuard guard(x.device());
  const Tensor result = joined_linear_forward_shapes(x, weights, biases);
  if (result.numel() == 0) {
    return result;
  }
  const Tensor rows = flat_rows(x);
  const Tensor all = result.view({-1, result.size(-1)});
  const Tensor weight = neighbours(weights);
  const Tensor bias = biases.empty() ? Tensor() : neighbours(biases);
  if (weight.defined() && (biases.empty() || bias.defined())) {
    multiply(all, rows, weight, bias);
    return result;
  }
  const std::vector<Tensor> columns = columns_of(all, weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    multiply(columns[i], rows, weights[i], element(biases, i));
  }
  return result;
}

Tensor joined_linear_backward_input_shapes(const Tensor& gradient, TensorList weights) {
  c10::SymDimVector sizes(gradient.sym_sizes().begin(), gradient.sym_sizes().end());
  sizes.back() = weights[0].sym_size(1);
  return at::empty_symint(sizes, gradient.options());
}

Tensor joined_linear_backward_input(const Tensor& gradient, TensorList weights) {
  const c10::DeviceGuard guard(gradient.device());
  const Tensor result = joined_linear_backward_input_shapes(gradient, weights);
  Tensor all = result.view({-1, result.size(-1)});
  const Tensor rows = flat_rows(gradient);
  const Tensor weight = neighbours(weights);
  if (weight.defined()) {
    at::mm_out(all, rows, weight);
    return result;
  }
  const std::vector<Tensor> columns = columns_of(rows, weights);
  at::mm_out(all, columns[0], weights[0]);
  for (std::size_t i = 1; i < weights.size(); ++i) {
    all.addmm_(columns[i], weights[i]);
  }
  return result;
}

Tensor joined_linear(const Tensor& x, TensorList weights, TensorList biases) {
  return JoinedLinearFunction::apply(x, if_any(weights, 0), if_any(weights, 1), if_any(weights, 2),
                                     if_any(biases, 0), if_any(biases, 1), if_any(biases, 2));
}

}  // namespace shardwise::ops
