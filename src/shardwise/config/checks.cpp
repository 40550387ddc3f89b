// Values that follow from others, and values that contradict each other.
#include <algorithm>
#include <limits>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"
#include "shardwise/config/batch.h"
#include "shardwise/config/draft.h"
#include "shardwise/config/optimizer_types.h"
#include "shardwise/config/scheduler_types.h"

namespace shardwise::config {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";
constexpr const char* kFp16Masters = "fp16.fp16_master_weights_and_grads";
constexpr const char* kBf16Masters = "bf16.bf16_master_weights_and_grads";
constexpr const char* kBf16States = "bf16.bf16_optimizer_states";

void check_batch(Draft& draft) {
  if (!draft.sound({kTrain, kMicro, kSteps})) {
    return;
  }
  BatchRequest request;
  request.given = {draft.value(kTrain).integer, draft.value(kMicro).integer,
                   draft.value(kSteps).integer};
  request.world_size = draft.options.world_size;
  request.world_origin = draft.options.world_size_origin;
  request.train_origin = draft.entry(kTrain).origin;
  request.micro_origin = draft.entry(kMicro).origin;
  request.steps_origin = draft.entry(kSteps).origin;
  const BatchSolution solution = solve_batch(request);
  if (!solution.problem.empty()) {
    draft.problem(solution.problem);
    return;
  }
  const auto settle = [&](const char* path, std::int64_t value, const std::string& origin) {
    // null in the document is the same as no value.
    if (!draft.given(path) || draft.value(path).is_null()) {
      draft.derive(path, Value::of(value), origin);
    }
  };
  settle(kTrain, solution.batch.train_batch_size, solution.train_origin);
  settle(kMicro, solution.batch.train_micro_batch_size_per_gpu, solution.micro_origin);
  settle(kSteps, solution.batch.gradient_accumulation_steps, solution.steps_origin);
}

void check_ranks(Draft& draft) {
  const Value& ranks = draft.value("data_parallel_size");
  if (!ranks.is_null() && ranks.integer != draft.options.world_size) {
    const std::string& origin = draft.options.world_size_origin;
    draft.problem(concat("data_parallel_size: ", ranks.integer, " does not equal world size ",
                         draft.options.world_size, origin.empty() ? "" : " (" + origin + ")",
                         "; remove the key or start ", ranks.integer, " processes"));
  }
}

void check_loss_scale(Draft& draft) {
  if (!draft.sound({"fp16.enabled", "fp16.loss_scale", "fp16.min_loss_scale"})) {
    return;
  }
  const double scale = draft.value("fp16.loss_scale").as_double();
  const bool dynamic = scale == 0;
  // The scale and the gradients times it are float32.
  if (!dynamic &&
      (scale < std::numeric_limits<float>::min() || scale > std::numeric_limits<float>::max())) {
    draft.problem(concat("fp16.loss_scale: ", scale,
                         " is no normal float32; allowed: 0 (dynamic), or a number from ",
                         std::numeric_limits<float>::min(), " to ",
                         std::numeric_limits<float>::max(), ", for example 1024"));
  }
  if (dynamic && (draft.is_true("fp16.enabled") || draft.is_true("torch_autocast.enabled")) &&
      draft.value("fp16.min_loss_scale").as_double() <= 0) {
    draft.problem(
        "fp16.min_loss_scale: 0 does not work with a dynamic loss scale (fp16.loss_scale "
        "0); write a number > 0, for example 1");
  }
}

void check_dtypes(Draft& draft) {
  if (!draft.sound({"fp16.enabled", "bf16.enabled", kSteps, kFp16Masters, kBf16Masters})) {
    return;
  }
  const bool fp16 = draft.is_true("fp16.enabled");
  const bool bf16 = draft.is_true("bf16.enabled");
  if (fp16 && bf16) {
    draft.problem("fp16.enabled and bf16.enabled are both true; set one of them to false");
    return;
  }
  const std::string model = fp16 ? "fp16" : bf16 ? "bf16" : "fp32";
  const Value& sum = draft.value("data_types.grad_accum_dtype");
  if (sum.is_null()) {
    const bool narrow =
        (fp16 && draft.is_true(kFp16Masters)) || (bf16 && draft.is_true(kBf16Masters));
    const std::string from = model == "fp32" ? "the training dtype"
                             : narrow        ? std::string(fp16 ? kFp16Masters : kBf16Masters)
                                             : concat("the training dtype and ", kSteps);
    draft.derive("data_types.grad_accum_dtype",
                 Value::of(default_sum_dtype(model, draft.value(kSteps).integer, narrow)),
                 "derived from " + from);
  } else if (sum.text != "fp32" && sum.text != model) {
    const std::string also = model == "fp32" ? "" : concat(" or \"", model, "\"");
    draft.problem(concat("data_types.grad_accum_dtype: \"", sum.text,
                         "\" does not fit training in ", model, "; write \"fp32\"", also));
  }
  const Value& parameters = draft.value("data_types.param_dtype");
  if (!parameters.is_null() && parameters.text != model) {
    draft.problem(concat("data_types.param_dtype: \"", parameters.text,
                         "\" does not equal the training dtype ", model, "; write \"", model,
                         "\" or remove the key"));
  }
}

void check_masters(Draft& draft) {
  if (!draft.sound({kFp16Masters, kBf16Masters, kBf16States, "fp16.enabled", "bf16.enabled"})) {
    return;
  }
  for (const auto& [key, mode] :
       {std::pair{kFp16Masters, "fp16.enabled"}, std::pair{kBf16Masters, "bf16.enabled"},
        std::pair{kBf16States, "bf16.enabled"}}) {
    if (draft.is_true(key) && !draft.is_true(mode)) {
      draft.note(concat(key, " has no effect: ", mode, " is false"));
    }
  }
  if (draft.is_true("bf16.enabled") && draft.is_true(kBf16States) && !draft.is_true(kBf16Masters)) {
    draft.problem(
        concat(kBf16States, ": true needs bf16 masters; set ", kBf16Masters, " to true too"));
  }
}

void check_autocast(Draft& draft) {
  if (!draft.sound({"torch_autocast.enabled", "torch_autocast.dtype"}) ||
      !draft.is_true("torch_autocast.enabled")) {
    return;
  }
  for (const char* key : {"fp16.enabled", "bf16.enabled"}) {
    if (draft.is_true(key)) {
      draft.problem(concat("torch_autocast.enabled keeps fp32 parameters and ", key,
                           " makes them 16-bit; set one of them to false"));
    }
  }
  if (draft.value("torch_autocast.dtype").is_null()) {
    draft.derive("torch_autocast.dtype", Value::of("bf16"), "default");
  }
  if (draft.value("torch_autocast.dtype").text == "fp32") {
    draft.problem("torch_autocast.dtype: \"fp32\" casts nothing; write \"bf16\" or \"fp16\"");
  }
}

void check_fp8(Draft& draft) {
  const char* key = "shardwise.fp8";
  if (!draft.sound({key, "bf16.enabled", "shardwise.fused_layers"}) ||
      draft.value(key).is_string("off")) {
    return;
  }
  if (!draft.is_true("bf16.enabled")) {
    draft.problem(concat(key, ": ", to_text(draft.value(key)),
                         " needs training in bf16; set bf16.enabled to true, or ", key,
                         " to \"off\""));
  }
  if (draft.value("shardwise.fused_layers").is_string("off")) {
    draft.problem(concat(key, ": ", to_text(draft.value(key)),
                         " acts in our operations, which shardwise.fused_layers: false leaves "
                         "out; remove one of the two"));
  }
}

void check_non_finite(Draft& draft) {
  const bool check = draft.is_true("bf16.check_grad_overflow");
  if (draft.is_true("bf16.enabled") && !check && !draft.given("shardwise.non_finite")) {
    draft.derive("shardwise.non_finite", Value::of("apply"),
                 "derived from bf16.check_grad_overflow");
  }
}

std::string params_key(const std::string& name) { return "optimizer.params." + name; }
std::string scheduler_key(const std::string& name) { return "scheduler.params." + name; }

// The names under `section` ("optimizer.params.") that the document gives.
std::vector<std::string> given_under(const Draft& draft, const std::string& section) {
  std::vector<std::string> names;
  for (const Field& field : schema().fields()) {
    const bool inside =
        field.path.rfind(section, 0) == 0 && !field.is_section() && !field.is_pattern();
    if (inside && (draft.given(field.path) || draft.broken.count(&field) > 0)) {
      names.push_back(field.path.substr(section.size()));
    }
  }
  return names;
}

// Those that are given but are not among the settings of this type are problems.
void check_belong(Draft& draft, const std::string& section, const std::string& type,
                  const std::vector<std::string>& settings) {
  for (const std::string& name : given_under(draft, section)) {
    if (std::find(settings.begin(), settings.end(), name) == settings.end()) {
      const std::vector<std::string> near = nearest(name, settings);
      draft.problem(concat(section, name, " is not a setting of ", type,
                           near.empty() ? "" : concat("; did you mean ", join_or(near), "?"),
                           near.empty() ? "; remove it" : ""));
    }
  }
}

void check_optimizer_type(Draft& draft, const std::string& type) {
  const std::string reason = unavailable_optimizer_reason(type);
  draft.problem(concat("optimizer.type: \"", type,
                       "\" is known, not available in this version of shardwise",
                       reason.empty() ? "" : " (" + reason + ")", "; write ",
                       schema().field("optimizer.type").shape.described));
}

// Settings that the document leaves out get the default of this type.
void derive_settings(Draft& draft, const std::string& type,
                     const std::vector<OptimizerSetting>& settings) {
  for (const OptimizerSetting& setting : settings) {
    const std::string key = params_key(setting.name);
    if (!setting.standard.is_null() && !draft.given(key)) {
      draft.derive(key, setting.standard, "default of " + type);
    }
  }
}

void check_sgd(Draft& draft) {
  const bool sound = draft.sound({params_key("momentum"), params_key("dampening")});
  const bool momentum = draft.value(params_key("momentum")).as_double() > 0;
  const bool dampening = draft.value(params_key("dampening")).as_double() != 0;
  if (sound && draft.is_true(params_key("nesterov")) && (!momentum || dampening)) {
    draft.problem("optimizer.params.nesterov: true needs momentum > 0 and dampening 0");
  }
}

void check_rmsprop(Draft& draft) {
  const std::string key = params_key("alpha");
  if (draft.sound({key}) && draft.value(key).as_double() > 1) {
    draft.problem(concat(key, ": ", draft.value(key).as_double(),
                         " is too large for RMSprop, whose mean square decays by it; allowed: a "
                         "number from 0 to 1, for example 0.99"));
  }
}

void check_adamw(Draft& draft) {
  if (!draft.is_true(params_key("adam_w_mode"))) {
    draft.note(
        "optimizer.params.adam_w_mode: false has no effect: AdamW always decouples weight "
        "decay; for decay through the gradient write \"type\": \"Adam\"");
    draft.derive(params_key("adam_w_mode"), Value::of(true), "derived from optimizer.type");
  }
}

// One rate for both halves of the optimizer, or one for each, or DeepSpeed's own.
void check_muon(Draft& draft) {
  for (const auto& [name, standard] : {std::pair{"muon_lr", 0.02}, std::pair{"adam_lr", 3e-4}}) {
    if (draft.value(params_key(name)).is_null() || !draft.given(params_key(name))) {
      const bool shared = draft.given(params_key("lr"));
      draft.derive(params_key(name), shared ? draft.value(params_key("lr")) : Value::of(standard),
                   shared ? "derived from lr" : "default of Muon");
    }
  }
}

// The key of the first setting that only torch's own class carries out, "" where there is none.
std::string torch_setting(const std::map<const Field*, Entry>& entries) {
  const auto value = [&](const char* path) -> const Value& {
    return entries.at(&schema().field(path)).value;
  };
  const Value& type = value("optimizer.type");
  if (type.is_null() || is_torch_optimizer(type.text)) {
    return type.is_null() ? "" : "optimizer.type";
  }
  for (const char* key : {"optimizer.params.amsgrad", "optimizer.params.maximize"}) {
    if (value(key) == Value::of(true)) {
      return key;
    }
  }
  return "";
}

void check_masters_of_rule(Draft& draft, const std::string& type) {
  const bool plain = takes_sixteen_bit_masters(type);
  const std::string setting = plain ? torch_setting(draft.entries) : "optimizer.type";
  if (setting.empty() ||
      !draft.sound({kFp16Masters, kBf16Masters, "fp16.enabled", "bf16.enabled", setting})) {
    return;
  }
  for (const auto& [key, mode] :
       {std::pair{kFp16Masters, "fp16.enabled"}, std::pair{kBf16Masters, "bf16.enabled"}}) {
    if (draft.is_true(key) && draft.is_true(mode)) {
      draft.problem(concat(setting, ": ", to_text(draft.value(setting)), " does not go with ", key,
                           ": ", sixteen_bit_masters_rule(), "; choose one of them, or set ", key,
                           " to false"));
    }
  }
}

void check_optimizer(Draft& draft) {
  if (!draft.sound({"optimizer.type"})) {
    return;
  }
  const Value type = draft.value("optimizer.type");
  if (type.is_null()) {
    if (!given_under(draft, params_key("")).empty()) {
      draft.problem("optimizer.params is given without optimizer.type; add \"type\": \"AdamW\"");
    }
    return;
  }
  if (!is_available_optimizer(type.text)) {
    check_optimizer_type(draft, type.text);
    return;
  }
  check_belong(draft, params_key(""), type.text, optimizer_setting_names(type.text));
  derive_settings(draft, type.text, optimizer_settings(type.text));
  check_masters_of_rule(draft, type.text);
  if (type.text == "SGD") {
    check_sgd(draft);
  } else if (type.text == "RMSprop") {
    check_rmsprop(draft);
  } else if (type.text == "AdamW") {
    check_adamw(draft);
  } else if (type.text == "Muon") {
    check_muon(draft);
  }
}

// The schedule's rate wins; whoever wrote only the optimizer's should know.
void note_far_rates(Draft& draft) {
  const std::string top = scheduler_key("warmup_max_lr");
  const std::string own = params_key("lr");
  if (!draft.sound({top, own}) || !draft.given(own) || !draft.value(top).is_number() ||
      !draft.value(own).is_number()) {
    return;
  }
  const double scheduled = draft.value(top).as_double();
  const double asked = draft.value(own).as_double();
  if (asked > 0 && scheduled > 0 && (scheduled > 10 * asked || asked > 10 * scheduled)) {
    draft.note(concat(top, " (", scheduled, ", ", draft.entry(top).origin, ") is used, not ", own,
                      " (", asked, "); write the same rate in both, or remove ", top));
  }
}

void check_warmup(Draft& draft, const std::string& type) {
  if (type == "WarmupDecayLR" && !draft.given(scheduler_key("warmup_max_lr"))) {
    draft.derive(scheduler_key("warmup_max_lr"), Value::of(1e-3), "default of WarmupDecayLR");
  }
  note_far_rates(draft);
  const std::string total = scheduler_key("total_num_steps");
  const std::string warmup = scheduler_key("warmup_num_steps");
  if (draft.sound({total, warmup}) && !draft.value(total).is_null() &&
      draft.value(total).integer < draft.value(warmup).integer) {
    draft.note(concat(total, " (", draft.value(total).integer, ") is less than ", warmup, " (",
                      draft.value(warmup).integer, "): the warm-up does not end"));
  }
}

void check_scheduler(Draft& draft) {
  if (!draft.sound({"scheduler.type"})) {
    return;
  }
  const Value type = draft.value("scheduler.type");
  if (type.is_null()) {
    if (!given_under(draft, scheduler_key("")).empty()) {
      draft.note("scheduler.params has no effect: there is no scheduler.type");
    }
    return;
  }
  const Field& field = schema().field("scheduler.type");
  if (!is_available_scheduler(type.text)) {
    draft.problem(concat("scheduler.type: \"", type.text,
                         "\" is known, not available in this version of shardwise; write ",
                         field.shape.described, ", or ", field.reason));
    return;
  }
  check_belong(draft, scheduler_key(""), type.text, scheduler_settings(type.text));
  for (const std::string& name : required_scheduler_settings(type.text)) {
    const std::string key = scheduler_key(name);
    if (draft.sound({key}) && draft.value(key).is_null()) {
      draft.problem(concat(key, " is missing; ", type.text, " needs it"));
    }
  }
  check_warmup(draft, type.text);
}

void check_zero(Draft& draft) {
  if (draft.value("zero_optimization.overlap_comm").is_null()) {
    draft.derive("zero_optimization.overlap_comm", Value::of(true), "default");
  }
  const bool sound = draft.sound({"zero_optimization.stage", "gradient_allreduce_op"});
  if (sound && draft.value("gradient_allreduce_op").text == "sum" &&
      draft.value("zero_optimization.stage").integer == 3) {
    draft.problem(
        "gradient_allreduce_op: \"sum\" is not possible with zero_optimization.stage 3; "
        "write \"mean\" or a stage below 3");
  }
}

void check_hybrid_sharding(Draft& draft) {
  const char* own = "shardwise.hybrid_shard_size";
  const char* mics = "zero_optimization.mics_shard_size";
  if (!draft.sound({own, mics, "zero_optimization.stage"})) {
    return;
  }
  const bool from_mics = draft.value(mics).integer > 0;
  if (from_mics && draft.given(own) && draft.value(own).integer != draft.value(mics).integer) {
    draft.problem(concat(mics, " is another name of ", own, ", and both are given: keep one"));
    return;
  }
  if (from_mics) {
    draft.derive(own, draft.value(mics), concat("derived from ", mics));
  }
  const std::int64_t size = draft.value(own).integer;
  const std::int64_t world = draft.options.world_size;
  if (size > 0 && (size > world || world % size != 0)) {
    draft.problem(concat(from_mics ? mics : own, ": ", size, " does not divide the world size ",
                         world, "; groups of equal size must hold all ranks"));
  }
}

void check_offload(Draft& draft) {
  const std::string device = "zero_optimization.offload_optimizer.device";
  if (draft.sound({device}) && draft.value(device).is_string("nvme")) {
    draft.problem(concat(device,
                         ": \"nvme\" is known, not available in this version of shardwise (",
                         needs_later_version(), "); write \"cpu\" for host memory, or \"none\""));
  }
}

void check_old_offload(Draft& draft) {
  const std::pair<const char*, const char*> pairs[] = {{"cpu_offload", "offload_optimizer"},
                                                       {"cpu_offload_param", "offload_param"}};
  for (const auto& [old_name, new_name] : pairs) {
    const std::string old_key = concat("zero_optimization.", old_name);
    const std::string new_key = concat("zero_optimization.", new_name, ".device");
    if (draft.given(old_key) && draft.given(new_key)) {
      draft.problem(concat(old_key, " is the old form of zero_optimization.", new_name,
                           ", and both are given; keep ", new_name));
    }
  }
}

// A run's files stay in its output folder.
void check_job_names(Draft& draft) {
  for (const char* section : {"csv_monitor", "tensorboard"}) {
    const std::string key = concat(section, ".job_name");
    if (!draft.sound({key})) {
      continue;
    }
    const std::string& name = draft.value(key).text;
    if (name == ".." || name.find_first_of("/\\") != std::string::npos) {
      draft.problem(concat(key, ": ", to_text(draft.value(key)),
                           " is no name of a folder; write it without / and \\, and where the "
                           "folder is to lie in ",
                           section, ".output_path"));
    }
  }
}

void apply_environment(Draft& draft) {
  const double seconds = draft.options.environment_timeout_seconds;
  if (seconds > 0 && !draft.given("shardwise.timeout_seconds")) {
    draft.derive("shardwise.timeout_seconds", Value::of(seconds),
                 "environment (DEEPSPEED_TIMEOUT)");
  }
}

}  // namespace

void check_and_derive(Draft& draft) {
  check_batch(draft);
  check_ranks(draft);
  check_loss_scale(draft);
  check_dtypes(draft);
  check_masters(draft);
  check_autocast(draft);
  check_non_finite(draft);
  check_fp8(draft);
  check_optimizer(draft);
  check_scheduler(draft);
  check_zero(draft);
  check_hybrid_sharding(draft);
  check_offload(draft);
  check_old_offload(draft);
  check_job_names(draft);
  apply_environment(draft);
  if (draft.job) {
    check_job(draft);
  }
}

std::vector<std::string> python_problems(const std::map<const Field*, Entry>& entries) {
  std::vector<std::string> problems;
  for (const Field& field : schema().fields()) {
    if (field.in_python && entries.at(&field).value != field.shape.default_value) {
      problems.push_back(concat(field.path, ": ", shorten(entries.at(&field).value),
                                " acts in the Python front (shardwise.initialize) alone, not in a "
                                "program without Python; remove it",
                                field.path == "tensorboard.enabled"
                                    ? " (python -m shardwise.tensorboard shows a job's log)"
                                    : ""));
    }
  }
  if (const std::string setting = torch_setting(entries); !setting.empty()) {
    const Field& field = schema().field(setting);
    problems.push_back(concat(
        setting, ": ", to_text(entries.at(&field).value),
        " is carried out by torch's own class, in the Python front (shardwise.initialize) alone, "
        "not in a program without Python; ",
        setting == "optimizer.type" ? "write " + field.shape.described : "set it to false"));
  }
  return problems;
}

std::string default_sum_dtype(const std::string& model_dtype, std::int64_t accumulation_steps,
                              bool sixteen_bit_masters) {
  return accumulation_steps > 1 && !sixteen_bit_masters ? "fp32" : model_dtype;
}

}  // namespace shardwise::config
