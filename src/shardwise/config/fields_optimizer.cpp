// The optimizer.
#include "shardwise/config/field.h"
#include "shardwise/config/optimizer_types.h"

namespace shardwise::config {
namespace {

constexpr const char* kPrefix = "optimizer.params.";

Shape two_numbers() {
  Shape shape;
  shape.type = Type::kFloatList;
  shape.length = 2;
  return shape;
}

Shape two_numbers(double first, double second) {
  Shape shape = two_numbers();
  shape.default_value = Value::array({Value::of(first), Value::of(second)});
  return shape;
}

void add_acting_params(FieldList& list) {
  const std::string p = kPrefix;
  list.acts(p + "lr", number(0).min(0),
            "Learning rate. Defaults of other types than Adam: see docs/engine.md.",
            SW_MEMBER(optimizer.params.lr))
      .derived();
  list.acts(p + "betas", two_numbers().min(0).below(1), "Decay rates of the two moments of Adam.",
            SW_MEMBER(optimizer.params.betas))
      .derived();
  list.acts(p + "eps", number(0).min(0), "Added to the root of the second moment.",
            SW_MEMBER(optimizer.params.eps))
      .derived();
  list.acts(p + "weight_decay", number(0).min(0), "Weight decay.",
            SW_MEMBER(optimizer.params.weight_decay));
  list.acts(p + "bias_correction", boolean(true), "Correct the moments of Adam for their start.",
            SW_MEMBER(optimizer.params.bias_correction));
  list.acts(p + "adam_w_mode", boolean(true),
            "Adam: decouple weight decay from the gradient, as AdamW always does.",
            SW_MEMBER(optimizer.params.adam_w_mode))
      .derived();
  list.acts(p + "momentum", number(0).min(0), "Momentum of SGD and Muon.",
            SW_MEMBER(optimizer.params.momentum))
      .derived();
  list.acts(p + "dampening", number(0), "Dampening of the momentum of SGD.",
            SW_MEMBER(optimizer.params.dampening));
  list.acts(p + "nesterov", boolean(false), "Nesterov's momentum for SGD.",
            SW_MEMBER(optimizer.params.nesterov));
  list.acts(p + "lr_decay", number(0).min(0), "Adagrad: lr becomes lr / (1 + steps · lr_decay).",
            SW_MEMBER(optimizer.params.lr_decay));
  list.acts(p + "initial_accumulator_value", number(0).min(0),
            "Adagrad: what the sums of squares start from.",
            SW_MEMBER(optimizer.params.initial_accumulator_value));
  list.acts(p + "max_coeff", number(0).min(0), "Lamb: largest trust ratio.",
            SW_MEMBER(optimizer.params.max_coeff));
  list.acts(p + "min_coeff", number(0).min(0), "Lamb: smallest trust ratio.",
            SW_MEMBER(optimizer.params.min_coeff));
  list.acts(p + "eps_inside_sqrt", boolean(false), "Lamb: add eps before the root.",
            SW_MEMBER(optimizer.params.eps_inside_sqrt));
  list.acts(p + "muon_lr", number(0.02).min(0).or_null(),
            "Muon: learning rate of matrices; null: lr, or 0.02.",
            SW_MEMBER(optimizer.params.muon_lr))
      .derived();
  list.acts(p + "adam_lr", number(3e-4).min(0).or_null(),
            "Muon: learning rate of all else; null: lr, or 3e-4.",
            SW_MEMBER(optimizer.params.adam_lr))
      .derived();
  list.acts(p + "ns_method", one_of({"gram", "standard"}, "gram"),
            "Muon: form of the Newton-Schulz iteration.", SW_MEMBER(optimizer.params.ns_method));
  list.acts(p + "amsgrad", boolean(false), "Use the largest second moment seen so far.",
            SW_MEMBER(optimizer.params.amsgrad));
  list.acts(p + "maximize", boolean(false), "torch: go up the gradient.",
            SW_MEMBER(optimizer.params.maximize));
}

// Settings of rules that torch's classes carry out; the Python package hands them over.
void add_torch_params(FieldList& list) {
  const std::string p = kPrefix;
  list.checked(p + "alpha", number(0.99).min(0), "RMSprop: decay of the mean square. ASGD: power.")
      .derived();
  list.checked(p + "centered", boolean(false), "RMSprop: use the variance of the gradient.");
  list.checked(p + "momentum_decay", number(4e-3).min(0), "NAdam: decay of the momentum.");
  list.checked(p + "decoupled_weight_decay", boolean(false),
               "NAdam, RAdam: decouple weight decay from the gradient.");
  list.checked(p + "rho", number(0.9).range(0, 1), "Adadelta: decay of the mean squares.");
  list.checked(p + "etas", two_numbers(0.5, 1.2).above(0), "Rprop: factors that shrink and grow.");
  list.checked(p + "step_sizes", two_numbers(1e-6, 50).min(0), "Rprop: smallest, largest step.");
  list.checked(p + "lambd", number(1e-4), "ASGD: decay term.");
  list.checked(p + "t0", number(1e6), "ASGD: step at which averaging starts.");
}

void add_other_params(FieldList& list) {
  const std::string p = kPrefix;
  Field& torch_adam =
      list.no_effect(p + "torch_adam", boolean(false), "Use torch's Adam instead of a fused one.",
                     "the one Adam here follows torch's arithmetic");
  FieldList::bind(torch_adam, SW_MEMBER(optimizer.params.torch_adam));
  list.no_effect(p + "set_grad_none", boolean(true), "Set .grad to None after a step.",
                 "gradients live in the flat buffer of their unit");
  list.no_effect(p + "fp32_optimizer_states", boolean(true), "Keep moments in fp32 under offload.",
                 "moments are always fp32");
  const char* one_kernel = "there is one update kernel, and it is fused";
  list.no_effect(p + "foreach", boolean(false).null_too(), "torch: update with list operations.",
                 one_kernel);
  list.no_effect(p + "fused", boolean(false).null_too(), "torch: update with a fused kernel.",
                 one_kernel);
  list.no_effect(p + "capturable", boolean(false), "torch: allow capture as a CUDA graph.",
                 one_kernel);
  list.unavailable(p + "differentiable", boolean(false), "torch: differentiate the update.");
  list.unavailable(p + "max_grad_norm", number(0).or_null().min(0), "Gradient clipping.")
      .instead("gradients are clipped by the top-level key gradient_clipping");
}

}  // namespace

void add_optimizer_fields(FieldList& list) {
  list.section("optimizer", "The optimizer, unless one is passed to initialize().");
  Shape types = one_of(known_optimizer_types(), "").or_null();
  types.any_case = true;
  types.described = "\"Adam\", \"AdamW\", \"SGD\", \"Lion\", \"Adagrad\", \"Lamb\" or \"Muon\"";
  list.acts("optimizer.type", types,
            "Adam, AdamW, SGD, Lion, Adagrad, Lamb, Muon; in Python also Adadelta, Adamax, ASGD, "
            "NAdam, RAdam, "
            "RMSprop, Rprop.",
            SW_MEMBER(optimizer.type));
  list.no_effect("optimizer.legacy_fusion", boolean(false),
                 "Fuse the fp16 weights of 1-bit optimizers in an older way.",
                 "it belongs to the 1-bit optimizers");
  list.section("optimizer.params", "Settings of the optimizer; which ones depends on its type.");
  add_acting_params(list);
  add_torch_params(list);
  add_other_params(list);
  list.parts(
      "optimizer.type", kPrefix,
      {{"freeze_step", integer(100000).min(0), "1-bit: steps before compression starts."},
       {"cuda_aware", boolean(false), "1-bit: MPI can read device memory."},
       {"comm_backend_name", text("nccl"), "1-bit: communication library."},
       {"var_freeze_step", integer(100000).min(0), "0/1 Adam: steps that update the variance."},
       {"var_update_scaler", integer(16).min(1), "0/1 Adam: growth of the update interval."},
       {"local_step_scaler", integer(32678).min(1), "0/1 Adam: growth of the local interval."},
       {"local_step_clipper", integer(16).min(1), "0/1 Adam: longest local interval."},
       {"coeff_beta", number(0.9), "1-bit Lamb: decay of the trust ratio."},
       {"factor_max", number(4.0), "1-bit Lamb: largest correction of the ratio."},
       {"factor_min", number(0.5), "1-bit Lamb: smallest correction of the ratio."},
       {"factor_threshold", number(0.1), "1-bit Lamb: largest change of the correction."}});
}

}  // namespace shardwise::config
