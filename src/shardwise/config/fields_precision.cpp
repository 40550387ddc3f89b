// Dtypes: fp16, bf16, data_types, torch_autocast, amp.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

void add_fp16_fields(FieldList& list) {
  list.section("fp16", "Training in fp16 with fp32 master weights and a loss scale.");
  list.acts("fp16.enabled", boolean(false), "Train in fp16.", SW_MEMBER(fp16.enabled));
  list.acts("fp16.auto_cast", boolean(false), "Cast floating-point inputs of forward to fp16.",
            SW_MEMBER(fp16.auto_cast));
  list.acts("fp16.loss_scale", number(0).min(0),
            "Factor on the loss before backward; 0: found dynamically.",
            SW_MEMBER(fp16.loss_scale));
  list.acts("fp16.initial_scale_power", integer(16).range(0, 127),
            "The dynamic scale starts at 2 to this power.", SW_MEMBER(fp16.initial_scale_power));
  list.acts("fp16.loss_scale_window", integer(1000).min(1),
            "Steps without overflow after which the dynamic scale doubles.",
            SW_MEMBER(fp16.loss_scale_window));
  list.acts("fp16.hysteresis", integer(2).min(1),
            "Overflows that are let pass before the dynamic scale is halved.",
            SW_MEMBER(fp16.hysteresis));
  list.acts("fp16.consecutive_hysteresis", boolean(false),
            "Refill the hysteresis after each step without overflow.",
            SW_MEMBER(fp16.consecutive_hysteresis));
  list.acts("fp16.min_loss_scale", number(1).min(0), "The dynamic scale never goes below this.",
            SW_MEMBER(fp16.min_loss_scale));
  list.acts("fp16.fp16_master_weights_and_grads", boolean(false),
            "The fp16 parameters are their own masters, and gradients are summed in fp16.",
            SW_MEMBER(fp16.master_weights_and_grads));
}

void add_bf16_fields(FieldList& list) {
  list.section("bf16", "Training in bf16 with fp32 master weights.").old_name("bfloat16");
  list.acts("bf16.enabled", boolean(false), "Train in bf16.", SW_MEMBER(bf16.enabled));
  list.acts("bf16.check_grad_overflow", boolean(true),
            "Look for non-finite gradients; false is shardwise.non_finite = apply.",
            SW_MEMBER(bf16.check_grad_overflow));
  list.no_effect("bf16.immediate_grad_update", boolean(false),
                 "Add gradients to the fp32 sum as soon as they exist.",
                 "gradients are always added as soon as they exist");
  for (const char* name : {"loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
                           "consecutive_hysteresis", "min_loss_scale", "auto_cast"}) {
    list.no_effect(std::string("bf16.") + name, any(), "A setting of section fp16.",
                   "bf16 has the range of fp32 and needs no loss scale");
  }
  list.acts("bf16.bf16_master_weights_and_grads", boolean(false),
            "The bf16 parameters are their own masters, and gradients are summed in bf16.",
            SW_MEMBER(bf16.master_weights_and_grads));
  list.acts("bf16.bf16_optimizer_states", boolean(false),
            "Keep the optimizer's states of such parameters in bf16 too.",
            SW_MEMBER(bf16.optimizer_states));
}

}  // namespace

void add_precision_fields(FieldList& list) {
  add_fp16_fields(list);
  add_bf16_fields(list);
  list.section("data_types", "Dtypes besides the training dtype.");
  list.acts("data_types.grad_accum_dtype", dtype("fp32").or_null(),
            "Dtype in which gradients are summed: fp32 or the training dtype. Without it the "
            "training dtype where one micro-batch makes a step or masters are 16-bit, else fp32.",
            SW_MEMBER(data_types.grad_accum_dtype))
      .derived();
  list.checked("data_types.param_dtype", dtype("fp32").or_null(), "Must equal the training dtype.");
  list.in_python("data_types.buffer_dtype", dtype("fp32").or_null(),
                 "Cast floating-point buffers to this dtype; null: they keep their own.");

  list.section("torch_autocast", "fp32 parameters under torch.autocast.");
  FieldList::bind(
      list.in_python("torch_autocast.enabled", boolean(false), "Run forward under torch.autocast."),
      SW_MEMBER(autocast.enabled));
  list.acts("torch_autocast.dtype", dtype("bf16").or_null(),
            "Dtype of autocast: bf16 (null too), or fp16, which brings the loss scale of section "
            "fp16.",
            SW_MEMBER(autocast.dtype))
      .derived();
  list.in_python("torch_autocast.lower_precision_safe_modules", words({}).or_null(),
                 "Module classes by their full names, whose gradients, and at stage 3 parameters, "
                 "travel in that dtype, but for those that a module of another class has too. "
                 "null: torch.nn.Linear, Conv1d, Conv2d and Conv3d, unless "
                 "communication_data_type is given.");

  list.section("amp", "NVIDIA Apex mixed precision.").removed();
  list.unavailable("amp.enabled", boolean(false), "Train with Apex amp.")
      .removed()
      .instead("use fp16 or bf16");
  list.part("amp.enabled", "amp.opt_level", text("").or_null(), "Passed to Apex.");
  list.part("amp.enabled", "amp.*", any(), "Any other setting is passed to Apex.");
}

}  // namespace shardwise::config
