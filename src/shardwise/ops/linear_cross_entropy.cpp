#include "shardwise/ops/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/ops/second_derivatives.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "linear_cross_entropy";

at::ScalarType loss_type(const Tensor& hidden) {
  return hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_targets(const Tensor& targets, const Tensor& hidden, std::int64_t vocabulary,
                   std::int64_t ignore_index) {
  check_device(targets, hidden, kName, "targets");
  SW_USER_CHECK(UsageError,
                targets.scalar_type() == at::kLong &&
                    targets.sizes() == hidden.sizes().slice(0, hidden.dim() - 1),
                kName, ": targets are ", targets.scalar_type(), targets.sizes(),
                "; they must be int64 of the shape of hidden without its last dimension, ",
                hidden.sizes().slice(0, hidden.dim() - 1));
  if (!targets.device().is_cpu()) {
    return;
  }
  const Tensor wrong = at::logical_and(targets.ne(ignore_index),
                                       at::logical_or(targets.lt(0), targets.ge(vocabulary)));
  if (wrong.any().item<bool>()) {
    SW_FAIL(UsageError, kName, ": target ", targets.masked_select(wrong)[0].item<std::int64_t>(),
            " is neither a token, 0 to ", vocabulary - 1, ", nor ignore_index, ", ignore_index);
  }
}

void check_inputs(const Tensor& hidden, const Tensor& weight, const OptionalTensor& token_weights,
                  const Tensor& targets) {
  check_device(weight, hidden, kName, "weight");
  SW_USER_CHECK(UsageError,
                hidden.dim() >= 1 && weight.dim() == 2 && weight.size(0) >= 1 &&
                    weight.size(1) == hidden.size(-1) &&
                    weight.scalar_type() == hidden.scalar_type(),
                kName, ": hidden is ", hidden.scalar_type(), hidden.sizes(), ", weight is ",
                weight.scalar_type(), weight.sizes(),
                "; they must be [..., width] and [vocabulary, width] of one dtype");
  if (token_weights) {
    check_device(*token_weights, hidden, kName, "token_weights");
    SW_USER_CHECK(
        UsageError,
        token_weights->scalar_type() == at::kFloat && token_weights->sizes() == targets.sizes(),
        kName, ": token_weights are ", token_weights->scalar_type(), token_weights->sizes(),
        "; they must be float32 of the shape of targets, ", targets.sizes());
  }
}

// Rows of logits that exist at a time: 2^29 logits are 1 GiB in 16 bits, enough rows for products
// at full speed with every vocabulary in use.
std::int64_t rows_of_chunk(std::int64_t chosen, std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = std::int64_t{1} << 29;
  constexpr std::int64_t kTile = 256;  // rows of a matrix product's tile
  return chosen > 0 ? chosen : std::max(kLogits / vocabulary / kTile * kTile, kTile);
}

// Sum over chunks of gradientᵀ · hidden.
class WeightGradient {
 public:
  WeightGradient(const Tensor& weight, bool one_chunk) : weight_(weight), rounds_(one_chunk) {}

  void add(const Tensor& gradient, const Tensor& hidden) {
    const Tensor transposed = gradient.t();
    if (rounds_ || weight_.scalar_type() == at::kDouble || weight_.scalar_type() == at::kFloat) {
      sum_ = sum_.defined() ? sum_.addmm_(transposed, hidden) : at::mm(transposed, hidden);
    } else if (weight_.is_cuda()) {
      // 16-bit factors, fp32 sum: one product that adds.
      if (!sum_.defined()) {
        sum_ = at::mm(transposed, hidden, at::kFloat);
      } else {
        at::addmm_out(sum_, sum_, transposed, hidden, at::kFloat);
      }
    } else {
      const Tensor product = at::mm(transposed, hidden).to(at::kFloat);
      sum_ = sum_.defined() ? sum_.add_(product) : product;
    }
  }
  Tensor result() const {
    return sum_.defined() ? sum_.narrow(0, 0, weight_.size(0)).to(weight_.scalar_type())
                          : at::zeros_like(weight_);
  }

 private:
  Tensor weight_;
  Tensor sum_;
  bool rounds_;  // a single product is rounded once by itself
};

// `factor` · `scale` / what the sum of losses is divided by, [1].
Tensor make_factor(const Tensor& targets, const OptionalTensor& token_weights,
                   std::int64_t ignore_index, bool mean, double factor,
                   const OptionalTensor& scale = std::nullopt) {
  const at::TensorOptions options = targets.options().dtype(at::kFloat);
  if (scale) {
    return make_factor(targets, token_weights, ignore_index, mean, factor).mul_(*scale);
  }
  if (!mean) {
    return at::full({1}, factor, options);
  }
  const Tensor counts = targets.ne(ignore_index);
  const Tensor sum = token_weights ? at::sum(*token_weights * counts) : at::sum(counts);
  return at::reciprocal(sum.to(at::kFloat)).mul_(factor).reshape({1});
}

// The op made of operations with derivatives of their own, for all rows at once.
Tensor composed_loss(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                     const LossOptions& options) {
  const at::ScalarType type = loss_type(hidden);
  const Tensor logits = at::linear(hidden, weight).to(type);
  const Tensor log_sum = at::logsumexp(logits, {-1});
  const Tensor counts = targets.ne(options.ignore_index);
  const Tensor answers = at::where(counts, targets, at::zeros_like(targets));
  Tensor losses =
      log_sum -
      (1.0 - options.label_smoothing) * logits.gather(-1, answers.unsqueeze(-1)).squeeze(-1) -
      options.label_smoothing * logits.mean(-1) + options.z_loss * at::square(log_sum);
  Tensor weights = counts.to(type);
  if (options.token_weights) {
    weights = weights * *options.token_weights;
  }
  const Tensor sum = at::sum(at::where(counts, losses * weights, at::zeros_like(losses)));
  return options.mean ? sum / at::sum(weights) : sum;
}

void save_options(AutogradContext* context, const LossOptions& options) {
  context->saved_data["ignore_index"] = options.ignore_index;
  context->saved_data["label_smoothing"] = options.label_smoothing;
  context->saved_data["z_loss"] = options.z_loss;
  context->saved_data["mean"] = options.mean;
  context->saved_data["announced"] = options.announced_factor;
}

LossOptions saved_options(AutogradContext* context, const OptionalTensor& token_weights) {
  return {.token_weights = token_weights,
          .ignore_index = context->saved_data["ignore_index"].toInt(),
          .label_smoothing = context->saved_data["label_smoothing"].toDouble(),
          .z_loss = context->saved_data["z_loss"].toDouble(),
          .mean = context->saved_data["mean"].toBool(),
          .announced_factor = context->saved_data["announced"].toDouble()};
}

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        const Tensor& targets, const LossOptions& options, bool of_hidden,
                        bool of_weight) {
    auto [loss, hidden_gradient, weight_gradient] =
        call_op("shardwise::linear_cross_entropy_forward", &linear_cross_entropy_forward, hidden,
                weight, targets, options.token_weights, options.ignore_index,
                options.label_smoothing, options.z_loss, options.mean, options.announced_factor,
                options.announced_scale, options.chunk_rows, of_hidden, of_weight);
    // The inputs are for gradients of gradients alone.
    context->save_for_backward({hidden_gradient, weight_gradient, hidden, weight, targets,
                                value_or_undefined(options.token_weights),
                                value_or_undefined(options.announced_scale)});
    save_options(context, options);
    context->saved_data["of_hidden"] = of_hidden;
    context->saved_data["of_weight"] = of_weight;
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const LossOptions options = saved_options(context, optional_of(saved[5]));
    if (backward_is_recorded()) {
      const variable_list found =
          recorded_gradients({saved[2], saved[3]}, gradients[0], [&](const variable_list& inputs) {
            return composed_loss(inputs[0], inputs[1], saved[4], options);
          });
      return {found[0], found[1], {}, {}, {}, {}};
    }
    Tensor factor = (gradients[0] / options.announced_factor).to(at::kFloat);
    if (saved[6].defined()) {
      factor = factor / saved[6];
    }
    // A graph that is kept will ask for these gradients again.
    const bool keeps = torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](const Tensor& gradient, const char* wanted) {
      if (!context->saved_data[wanted].toBool()) {
        return Tensor();
      }
      if (keeps) {
        return at::mul(gradient, factor).to(gradient.scalar_type());
      }
      call_op("shardwise::rescale_", &rescale, gradient, factor);
      return gradient;
    };
    return {scaled(saved[0], "of_hidden"), scaled(saved[1], "of_weight"), {}, {}, {}, {}};
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_forward_shapes(
    const Tensor& hidden, const Tensor& weight, const Tensor&, const OptionalTensor&, std::int64_t,
    double, double, bool, double, const OptionalTensor&, std::int64_t, bool hidden_gradient,
    bool weight_gradient) {
  const auto like = [](const Tensor& tensor, bool wanted) {
    return wanted ? at::empty_symint(tensor.sym_sizes(), tensor.options())
                  : at::empty({0}, tensor.options());
  };
  return {at::empty({}, hidden.options().dtype(loss_type(hidden))), like(hidden, hidden_gradient),
          like(weight, weight_gradient)};
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_forward(
    const Tensor& hidden, const Tensor& weight, const Tensor& targets,
    const OptionalTensor& token_weights, std::int64_t ignore_index, double label_smoothing,
    double z_loss, bool mean, double announced_factor, const OptionalTensor& announced_scale,
    std::int64_t chunk_rows, bool hidden_gradient, bool weight_gradient) {
  check_inputs(hidden, weight, token_weights, targets);
  const std::int64_t vocabulary = weight.size(0);
  check_targets(targets, hidden, vocabulary, ignore_index);
  const c10::DeviceGuard guard(hidden.device());
  const Tensor rows = hidden.reshape({-1, hidden.size(-1)}).contiguous();
  const Tensor answers = targets.flatten().contiguous();
  const OptionalTensor weights =
      token_weights ? OptionalTensor(token_weights->flatten().contiguous()) : std::nullopt;
  const std::int64_t count = rows.size(0);
  const std::int64_t chunk =
      std::min(rows_of_chunk(chunk_rows, vocabulary), std::max<std::int64_t>(count, 1));
  constexpr std::int64_t kAligned = 64;  // elements: rows of logits begin at whole lines of memory
  const std::int64_t stride = (vocabulary + kAligned - 1) / kAligned * kAligned;
  // Products are slow where a side is no multiple of 8 (GPT-2 has 50,257 tokens): such a vocabulary
  // is continued with rows of zeros, whose logits are 0, as is what they add to the gradients.
  const bool continued = vocabulary % 8 != 0;
  const Tensor table =
      continued ? at::constant_pad_nd(weight, {0, 0, 0, stride - vocabulary}) : weight;
  const Tensor buffer = at::empty({chunk, stride}, hidden.options());
  const Tensor losses = at::empty({count}, hidden.options().dtype(loss_type(hidden)));
  const Tensor factor =
      make_factor(answers, weights, ignore_index, mean, announced_factor, announced_scale);
  const Tensor of_hidden =
      hidden_gradient ? at::empty_like(rows) : at::empty({0}, hidden.options());
  WeightGradient of_weight(weight, chunk >= count);
  const bool gradients = hidden_gradient || weight_gradient;
  for (std::int64_t begin = 0; begin < count; begin += chunk) {
    const std::int64_t n = std::min(chunk, count - begin);
    const Tensor part = rows.narrow(0, begin, n);
    Tensor logits = buffer.narrow(0, 0, n).narrow(1, 0, table.size(0));
    at::mm_out(logits, part, table.t());
    const auto at_row = [&](const Tensor& tensor) { return tensor.narrow(0, begin, n).data_ptr(); };
    kernels::cross_entropy(
        place_of(hidden),
        {.dtype = dtype_of(hidden, kName),
         .rows = n,
         .vocabulary = vocabulary,
         .row_stride = stride},
        {.ignored = ignore_index,
         .label_smoothing = label_smoothing,
         .z_loss = z_loss,
         .write_gradient = gradients},
        {.logits = logits.data_ptr(),
         .targets = static_cast<const std::int64_t*>(at_row(answers)),
         .weights = weights ? static_cast<const float*>(at_row(*weights)) : nullptr,
         .factor = static_cast<const float*>(factor.data_ptr()),
         .losses = at_row(losses)});
    if (hidden_gradient) {
      Tensor result = of_hidden.narrow(0, begin, n);
      at::mm_out(result, logits, table);
    }
    if (weight_gradient) {
      of_weight.add(logits, part);
    }
  }
  const Tensor divided = mean ? make_factor(answers, weights, ignore_index, mean, 1.0)
                              : at::ones({1}, factor.options());
  return {at::sum(losses) * divided[0].to(losses.scalar_type()),
          hidden_gradient ? of_hidden.view(hidden.sizes()) : of_hidden,
          weight_gradient ? of_weight.result() : at::empty({0}, weight.options())};
}

void rescale(const Tensor& x, const Tensor& factor) {
  SW_CHECK(x.is_contiguous() && factor.numel() == 1 && factor.scalar_type() == at::kFloat);
  const c10::DeviceGuard guard(x.device());
  kernels::rescale(place_of(x), pointer(x), dtype_of(x, "rescale"), x.numel(),
                   static_cast<const float*>(pointer(factor)));
}

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            const LossOptions& options) {
  SW_USER_CHECK(UsageError, options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0, kName,
                ": label_smoothing is ", options.label_smoothing, "; it must be 0 to 1");
  SW_USER_CHECK(UsageError, options.announced_factor != 0.0, kName,
                ": announced_factor is 0; the gradients could not be scaled to another one");
  SW_USER_CHECK(UsageError, options.chunk_rows >= 0, kName, ": chunk_rows is ", options.chunk_rows,
                "; it must be a number of rows, or 0 for our choice");
  const bool records = at::GradMode::is_enabled();  // off inside of the function
  return LinearCrossEntropyFunction::apply(hidden, weight, targets, options,
                                           records && hidden.requires_grad(),
                                           records && weight.requires_grad());
}

Tensor linear_cross_entropy_op(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                               const OptionalTensor& token_weights, std::int64_t ignore_index,
                               double label_smoothing, double z_loss, std::string_view reduction,
                               double announced_factor, std::int64_t chunk_rows) {
  SW_USER_CHECK(UsageError, reduction == "mean" || reduction == "sum", kName, ": reduction is \"",
                reduction, "\"; it must be mean or sum");
  return linear_cross_entropy(hidden, weight, targets,
                              {.token_weights = token_weights,
                               .ignore_index = ignore_index,
                               .label_smoothing = label_smoothing,
                               .z_loss = z_loss,
                               .mean = reduction == "mean",
                               .announced_factor = announced_factor,
                               .chunk_rows = chunk_rows});
}

}  // namespace shardwise::ops
