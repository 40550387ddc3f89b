#include "shardwise/config/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "shardwise/base/check.h"
#include "shardwise/base/error.h"

namespace shardwise::config {
namespace {

Resolved load(const std::string& text, std::int64_t world_size = 1) {
  LoadOptions options;
  options.world_size = world_size;
  options.source = "ds.json";
  return load_text(text, options);
}

// The document with a batch size and these members.
Resolved load_with(const std::string& members) {
  return load("{\"train_batch_size\": 8, " + members + "}");
}

// "" when the document is right, else the error.
std::string error_of(const std::string& text, std::int64_t world_size = 1) {
  try {
    load(text, world_size);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string error_with(const std::string& members) {
  return error_of("{\"train_batch_size\": 8, " + members + "}");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool has_note(const Resolved& resolved, const std::string& part) {
  const auto& notes = resolved.notes();
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return contains(note, part); });
}

// --- values and origins ---

TEST(Config, TheUsersExample) {
  const Resolved resolved = load(R"({
    // GPT-2
    "train_batch_size": 32, "gradient_accumulation_steps": 4, "fp16": {"enabled": true},
    "zero_optimization": {"stage": 2, "allgather_bucket_size": 5e8},
  })",
                                 2);
  const Config& config = resolved.config();
  EXPECT_EQ(config.batch.train_batch_size, 32);
  EXPECT_EQ(config.batch.train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(config.batch.gradient_accumulation_steps, 4);
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_EQ(config.zero.allgather_bucket_size, 500'000'000);
  EXPECT_EQ(config.model_dtype(), "fp16");
  EXPECT_EQ(config.data_types.grad_accum_dtype, "fp32");
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(resolved.world_size(), 2);
  ASSERT_EQ(resolved.notes().size(), 1U);
  EXPECT_EQ(resolved.notes()[0],
            "zero_optimization.allgather_bucket_size has no effect: units are gathered whole, not "
            "in buckets");
}

TEST(Config, DefaultsAreTheStructsInitialisers) {
  const Resolved resolved = load(R"({"train_batch_size": 1})");
  const Config expected;
  const Config& config = resolved.config();
  EXPECT_EQ(config.zero.stage, expected.zero.stage);
  EXPECT_EQ(config.zero.overlap_comm, expected.zero.overlap_comm);
  EXPECT_EQ(config.zero.model_persistence_threshold, expected.zero.model_persistence_threshold);
  EXPECT_EQ(config.fp16.initial_scale_power, expected.fp16.initial_scale_power);
  EXPECT_EQ(config.optimizer.params.betas, expected.optimizer.params.betas);
  EXPECT_EQ(config.optimizer.type, "");
  EXPECT_EQ(config.own.timeout_seconds, expected.own.timeout_seconds);
  EXPECT_EQ(config.own.units, expected.own.units);
  EXPECT_EQ(config.communication_data_type, "");
  EXPECT_EQ(config.steps_per_print, 0);
  EXPECT_TRUE(resolved.notes().empty());
}

TEST(Config, EveryActingKeyReachesItsMember) {
  const Config c = load(R"({
    "train_batch_size": 48, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 6,
    "steps_per_print": 10, "gradient_clipping": 0, "gradient_allreduce_op": "sum",
    "dataloader_drop_last": true,
    "optimizer": {"type": "adam", "params": {"lr": 1, "betas": [0.5, 0.75], "eps": 1e-4,
      "weight_decay": 0.25, "bias_correction": false, "adam_w_mode": false, "torch_adam": true}},
    "fp16": {"enabled": true, "auto_cast": true, "loss_scale": 128, "initial_scale_power": 4,
      "loss_scale_window": 7, "hysteresis": 3, "consecutive_hysteresis": true,
      "min_loss_scale": 0.5},
    "data_types": {"grad_accum_dtype": "torch.float16", "param_dtype": "half"},
    "zero_optimization": {"stage": 2, "overlap_comm": false, "reduce_bucket_size": 1,
      "stage3_prefetch_bucket_size": 2, "stage3_param_persistence_threshold": 3,
      "stage3_model_persistence_threshold": 4, "stage3_max_live_parameters": 5},
    "shardwise": {"units": ["Block", "model.head"], "strict": true, "deterministic": false,
      "non_finite": "raise", "force_communication": true, "poison_released": true,
      "timeout_seconds": 1.5, "fused_layers": "off", "activation_checkpointing": "selective"}})",
                        2)
                       .config();
  EXPECT_EQ(c.batch.train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(c.batch.gradient_accumulation_steps, 6);
  EXPECT_EQ(c.steps_per_print, 10);
  EXPECT_EQ(c.gradient_clipping, 0);
  EXPECT_EQ(c.gradient_allreduce_op, "sum");
  EXPECT_TRUE(c.dataloader_drop_last);
  EXPECT_EQ(c.optimizer.type, "Adam");
  EXPECT_EQ(c.optimizer.params.lr, 1);
  EXPECT_EQ(c.optimizer.params.betas, (std::array<double, 2>{0.5, 0.75}));
  EXPECT_EQ(c.optimizer.params.eps, 1e-4);
  EXPECT_EQ(c.optimizer.params.weight_decay, 0.25);
  EXPECT_FALSE(c.optimizer.params.bias_correction);
  EXPECT_FALSE(c.optimizer.params.adam_w_mode);
  EXPECT_TRUE(c.optimizer.params.torch_adam);
  EXPECT_TRUE(c.fp16.auto_cast);
  EXPECT_EQ(c.fp16.loss_scale, 128);
  EXPECT_EQ(c.fp16.initial_scale_power, 4);
  EXPECT_EQ(c.fp16.loss_scale_window, 7);
  EXPECT_EQ(c.fp16.hysteresis, 3);
  EXPECT_TRUE(c.fp16.consecutive_hysteresis);
  EXPECT_EQ(c.fp16.min_loss_scale, 0.5);
  EXPECT_EQ(c.data_types.grad_accum_dtype, "fp16");
  EXPECT_FALSE(c.zero.overlap_comm);
  EXPECT_EQ(c.zero.reduce_bucket_size, 1);
  EXPECT_EQ(c.zero.prefetch_bucket_size, 2);
  EXPECT_EQ(c.zero.param_persistence_threshold, 3);
  EXPECT_EQ(c.zero.model_persistence_threshold, 4);
  EXPECT_EQ(c.zero.max_live_parameters, 5);
  EXPECT_EQ(c.own.units, (std::vector<std::string>{"Block", "model.head"}));
  EXPECT_FALSE(c.own.deterministic);
  EXPECT_EQ(c.own.non_finite, "raise");
  EXPECT_TRUE(c.own.force_communication);
  EXPECT_TRUE(c.own.poison_released);
  EXPECT_EQ(c.own.timeout_seconds, 1.5);
  EXPECT_EQ(c.own.fused_layers, "off");
  EXPECT_EQ(c.own.activation_checkpointing, "selective");
}

TEST(Config, OriginsSayWhereEachValueCameFrom) {
  const Resolved resolved = load_with(R"("zero_optimization": {"stage": 1})");
  EXPECT_EQ(resolved.origin("train_batch_size"), "user (ds.json)");
  EXPECT_EQ(resolved.origin("train_micro_batch_size_per_gpu"),
            "derived from train_batch_size and world size");
  EXPECT_EQ(resolved.origin("zero_optimization.stage"), "user (ds.json)");
  EXPECT_EQ(resolved.origin("zero_optimization"), "user (ds.json)");
  EXPECT_EQ(resolved.origin("zero_optimization.reduce_bucket_size"), "default");
  EXPECT_EQ(resolved.origin("fp16"), "default");
}

TEST(Config, ValuesByPath) {
  const Resolved resolved = load_with(R"("zero_optimization": {"stage": 1})");
  EXPECT_EQ(resolved.value_json("zero_optimization.stage"), "1");
  EXPECT_EQ(resolved.value_json("zero_optimization.stage3_max_live_parameters"), "1000000000");
  EXPECT_EQ(resolved.value_json("bfloat16.enabled"), "false");
  EXPECT_EQ(resolved.value_json("timers"),
            R"({"throughput": {"enabled": true, "synchronized": true}})");
  EXPECT_TRUE(contains(resolved.value_json(""), "\"train_batch_size\": 8"));
  try {
    resolved.value_json("zero_optimization.stag");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "did you mean stage?")) << error.what();
  }
  EXPECT_THROW(resolved.origin("nothing.of.this"), ConfigError);
  EXPECT_THROW(resolved.value_json("amp.*"), ConfigError);
}

TEST(Config, ThePrintedDocumentLoadsToTheSame) {
  const Resolved resolved = load(R"({"train_batch_size": 24, "gradient_accumulation_steps": 3,
    "bf16": {"enabled": true}, "optimizer": {"type": "SGD", "params": {"momentum": 0.9}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "sub_group_size": 5},
    "tensorboard": {"job_name": "x"}, "steps_per_print": Infinity})",
                                 4);
  // Settings of other optimizers are left out, since SGD would refuse them.
  const std::string printed = resolved.to_json(false);
  EXPECT_TRUE(contains(printed, "\"train_micro_batch_size_per_gpu\": 2")) << printed;
  const Resolved again = load(printed, 4);
  EXPECT_EQ(again.to_json(false), printed);
  EXPECT_EQ(again.config().optimizer.params.momentum, 0.9);
  EXPECT_EQ(again.value_json("tensorboard.job_name"), "\"x\"");
}

TEST(Config, ThePrintedOrigins) {
  const std::string text = load_with(R"("fp16": {"enabled": true})").to_json(true);
  EXPECT_TRUE(contains(text,
                       "\"fp16.enabled\": {\n    \"value\": true,\n    \"origin\": \"user "
                       "(ds.json)\"\n  }"))
      << text;
  EXPECT_TRUE(contains(text,
                       "\"train_micro_batch_size_per_gpu\": {\n    \"value\": 8,\n    "
                       "\"origin\": \"derived from train_batch_size and world size\""))
      << text;
}

// --- types and ranges ---

TEST(Config, IntegersMayBeWrittenAsFloats) {
  const Config c = load_with(R"("zero_optimization": {"reduce_bucket_size": 5e8})").config();
  EXPECT_EQ(c.zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(error_with(R"("zero_optimization": {"reduce_bucket_size": 0.5})"),
            "ds.json: zero_optimization.reduce_bucket_size: 0.5 is not a whole number; allowed: an "
            "integer >= 0");
}

TEST(Config, WrongTypesSayWhatIsGivenAndWhatIsAllowed) {
  EXPECT_EQ(error_with(R"("gradient_clipping": "1.0")"),
            "ds.json: gradient_clipping: \"1.0\" is a string; allowed: a number >= 0 (write 1.0 "
            "without quotes)");
  EXPECT_EQ(error_with(R"("fp16": {"enabled": "True"})"),
            "ds.json: fp16.enabled: \"True\" is a string; allowed: true or false (write true "
            "without quotes)");
  EXPECT_EQ(error_with(R"("gradient_clipping": true)"),
            "ds.json: gradient_clipping: true is a bool; allowed: a number >= 0");
  EXPECT_EQ(error_with(R"("fp16": {"enabled": 1})"),
            "ds.json: fp16.enabled: 1 is an integer; allowed: true or false");
  EXPECT_EQ(error_with(R"("fp16": 3)"), "ds.json: fp16: 3 is an integer; allowed: an object");
  EXPECT_EQ(error_with(R"("bf16": true)"),
            "ds.json: bf16: true is a bool; allowed: an object, for example {\"enabled\": true}");
  EXPECT_EQ(error_with(R"("zero_optimization": {"stage": null})"),
            "ds.json: zero_optimization.stage: null is not a value of this key; allowed: an "
            "integer from 0 to 3 (remove the key to get the default)");
  EXPECT_EQ(error_with(R"("shardwise": {"units": [1]})"),
            "ds.json: shardwise.units: 1 is an integer; allowed: a list of strings");
}

TEST(Config, RangesSayBothSides) {
  EXPECT_EQ(error_with(R"("zero_optimization": {"stage": 4})"),
            "ds.json: zero_optimization.stage: 4 is too large; allowed: an integer from 0 to 3");
  EXPECT_TRUE(contains(error_with(R"("gradient_clipping": -1)"), "-1 is too small"));
  EXPECT_TRUE(contains(error_with(R"("gradient_clipping": NaN)"), "NaN is not finite"));
  EXPECT_TRUE(contains(error_with(R"("fp16": {"loss_scale": Infinity})"), "is not finite"));
  EXPECT_TRUE(contains(error_with(R"("fp16": {"loss_scale": true})"), "true is a bool"));
  EXPECT_TRUE(contains(error_with(R"("fp16": {"loss_scale_window": 3e9})"), "is too large"));
  EXPECT_TRUE(contains(error_with(R"("shardwise": {"timeout_seconds": 0})"), "a number > 0"));
  EXPECT_TRUE(
      contains(error_with(R"("optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}})"),
               "1 is too large; allowed: a list of 2 numbers >= 0 and < 1"));
  EXPECT_TRUE(contains(error_with(R"("optimizer": {"type": "Adam", "params": {"betas": [0.9]}})"),
                       "has 1 entries; allowed: a list of 2 numbers"));
}

TEST(Config, HugeNumbers) {
  EXPECT_TRUE(contains(error_of(R"({"train_batch_size": 9223372036854775808})"),
                       "does not fit into 64 bits"));
  EXPECT_TRUE(contains(error_of(R"({"train_batch_size": 1e300})"), "does not fit into 64 bits"));
  EXPECT_TRUE(contains(error_of(R"({"train_batch_size": 1e400})"), "too large for a 64-bit float"));
  EXPECT_EQ(load(R"({"train_batch_size": 9223372036854775807})").config().batch.train_batch_size,
            9223372036854775807);
}

TEST(Config, ChoicesSuggestTheNearest) {
  EXPECT_EQ(error_with(R"("gradient_allreduce_op": "means")"),
            "ds.json: gradient_allreduce_op: \"means\" is not one of its values; allowed: \"mean\" "
            "or \"sum\" (did you mean mean?)");
}

TEST(Config, StepsPerPrintMayBeInfinite) {
  for (const char* never : {"Infinity", "\"inf\"", "\"Infinity\"", "null", "0"}) {
    const Resolved resolved = load_with(std::string("\"steps_per_print\": ") + never);
    EXPECT_EQ(resolved.config().steps_per_print, 0) << never;
  }
  EXPECT_TRUE(contains(error_with(R"("steps_per_print": -Infinity)"), "is not a whole number"));
}

// --- unknown keys ---

TEST(Config, UnknownKeysNameTheNearest) {
  EXPECT_EQ(error_with(R"("zero_optimization": {"stge": 2})"),
            "ds.json: zero_optimization.stge: unknown key; did you mean stage?");
  EXPECT_EQ(error_with(R"("stage": 2)"),
            "ds.json: stage: unknown key; stage belongs under zero_optimization");
  EXPECT_TRUE(
      contains(error_with(R"("zero_optimization": {"offload_param": {"devise": "cpu"}})"),
               "zero_optimization.offload_param.devise: unknown key; did you mean device?"));
}

TEST(Config, NotStrictTurnsUnknownKeysIntoNotes) {
  const Resolved resolved =
      load_with(R"("zero_optimization": {"stge": 2}, "shardwise": {"strict": false})");
  EXPECT_EQ(resolved.config().zero.stage, 0);
  EXPECT_TRUE(has_note(resolved, "zero_optimization.stge: unknown key; did you mean stage?"));
  // Values of known keys stay errors.
  EXPECT_FALSE(error_with(R"("fp16": {"enabled": 1}, "shardwise": {"strict": false})").empty());
}

TEST(Config, AllProblemsAreInOneError) {
  const std::string error = error_of(
      R"({"train_batch_size": 33, "stage": 2, "zero_optimization": {"stage": 7, "stage": 2},
          "fp16": {"enabled": true}, "bf16": {"enabled": true, "enabeld": 1},
          "comet": {"enabled": true}})",
      4);
  EXPECT_TRUE(contains(error, "ds.json: 7 problems:\n  1. ")) << error;
  EXPECT_TRUE(contains(error, "zero_optimization.stage: the key \"stage\" is given twice"))
      << error;
  EXPECT_TRUE(contains(error, "stage belongs under zero_optimization")) << error;
  EXPECT_TRUE(contains(error, "bf16.enabeld: unknown key; did you mean enabled?")) << error;
  EXPECT_TRUE(contains(error, "33 (user (ds.json)) is not a multiple of world size 4")) << error;
  EXPECT_TRUE(contains(error, "fp16.enabled and bf16.enabled are both true")) << error;
  EXPECT_TRUE(contains(error, "comet.enabled: true is known, not available")) << error;
}

TEST(Config, ThousandsOfProblemsAreCounted) {
  std::string text = "{\"train_batch_size\": 8";
  for (int i = 0; i < 1000; ++i) {
    text += ", \"key" + std::to_string(i) + "\": 1";
  }
  const std::string error = error_of(text + "}");
  EXPECT_TRUE(contains(error, "1000 problems:"));
  EXPECT_TRUE(contains(error, "... and 960 more"));
}

// --- other names and old forms ---

TEST(Config, AliasesMeanTheSame) {
  EXPECT_EQ(load_with(R"("zero_optimization": {"stage3_max_live_parameters": 5})")
                .config()
                .zero.max_live_parameters,
            5);
  EXPECT_EQ(load_with(R"("zero_optimization": {"max_live_parameters": 5})")
                .config()
                .zero.max_live_parameters,
            5);
  EXPECT_TRUE(contains(error_with(R"("zero_optimization": {"max_live_parameters": 5,
                                     "stage3_max_live_parameters": 5})"),
                       "are two names of the same key; keep one"));
}

TEST(Config, OldNamesAreNoted) {
  const Resolved resolved = load_with(
      R"("bfloat16": {"enabled": true},
         "zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true})");
  EXPECT_TRUE(resolved.config().bf16.enabled);
  EXPECT_TRUE(has_note(resolved, "bfloat16 is an old name; write bf16"));
  EXPECT_TRUE(has_note(resolved,
                       "stage3_gather_fp16_weights_on_model_save is an old name; write "
                       "zero_optimization.gather_16bit_weights_on_model_save"));
  EXPECT_TRUE(contains(error_with(R"("bfloat16": {"enabled": true}, "bf16": {"enabled": true})"),
                       "bf16 and bfloat16 are two names of the same key"));
  EXPECT_TRUE(
      contains(error_with(R"("zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true,
                    "stage3_gather_16bit_weights_on_model_save": true})"),
               "two names of the same key"));
}

TEST(Config, ZeroAsABool) {
  const Resolved on = load_with(R"("zero_optimization": true, "allgather_size": 1000)");
  EXPECT_EQ(on.config().zero.stage, 1);
  EXPECT_TRUE(has_note(on, "write {\"stage\": 1}"));
  EXPECT_EQ(load_with(R"("zero_optimization": false)").config().zero.stage, 0);
  EXPECT_TRUE(contains(error_with(R"("zero_optimization": 1)"), "allowed: an object"));
}

TEST(Config, OldOffloadForms) {
  EXPECT_EQ(error_with(R"("zero_optimization": {"cpu_offload": false,
                          "cpu_offload_param": null, "cpu_offload_use_pin_memory": true})"),
            "");
  EXPECT_TRUE(contains(error_with(R"("zero_optimization": {"cpu_offload": true})"),
                       "zero_optimization.cpu_offload: true is known, not available in this "
                       "version of shardwise (needs version > " SW_VERSION
                       "); remove it or set false"));
  EXPECT_TRUE(contains(error_with(R"("zero_optimization": {"cpu_offload": false,
                                     "offload_optimizer": {"device": "none"}})"),
                       "both are given; keep offload_optimizer"));
  EXPECT_TRUE(contains(error_with(R"("zero_optimization": {"cpu_offload_param": false,
                                     "offload_param": {"device": "none"}})"),
                       "both are given; keep offload_param"));
}

// --- features that are not there ---

TEST(Config, OffIsSilentAndOnIsAnError) {
  const Resolved off = load_with(
      R"("zero_optimization": {"offload_param": {"device": "none", "nvme_path": null,
         "pin_memory": true}, "offload_optimizer": null, "zenflow": null, "mics_shard_size": 0},
         "wall_clock_breakdown": false, "tensorboard": {"enabled": false, "output_path": "x"},
         "elasticity": {"enabled": false, "micro_batch_sizes": [1]}, "sparse_attention": null,
         "weight_quantization": {"enabled": false, "num_bits": 4}, "pipeline": {"stages": "auto"},
         "checkpoint": {"use_node_local_storage": false}, "shardwise": {"fused_layers": "auto"})");
  EXPECT_TRUE(off.notes().empty());
  EXPECT_EQ(error_with(R"("zero_optimization": {"offload_param": {"device": "cpu"}})"),
            "ds.json: zero_optimization.offload_param.device: \"cpu\" is known, not available in "
            "this version of shardwise (needs version > " SW_VERSION
            "); remove it or set \"none\"");
}

TEST(Config, EachOfTheseAsksForAFeature) {
  for (const char* members : {
           R"("zero_optimization": {"offload_optimizer": {"device": "nvme"}})",
           R"("zero_optimization": {"zenflow": {}})",
           R"("zero_optimization": {"zero_hpz_partition_size": 8})",
           R"("zero_optimization": {"zero_quantized_weights": true})",
           R"("zero_optimization": {"load_from_fp32_weights": false})",
           R"("prescale_gradients": true)",
           R"("gradient_predivide_factor": 2)",
           R"("sparse_gradients": true)",
           R"("memory_breakdown": true)",
           R"("dump_state": true)",
           R"("log_level": "info")",
           R"("managed_gradient_accumulation": false)",
           R"("sequence_parallel_size": 2)",
           R"("amp": {"enabled": true, "anything": {"x": 1}})",
           R"("scheduler": {"type": "StepLR", "params": {"step_size": 10}})",
           R"("optimizer": {"type": "Adafactor"})",
           R"("optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 5}})",
           R"("optimizer": {"type": "AdamW", "params": {"differentiable": true}})",
           R"("activation_checkpointing": {"profile": true})",
           R"("tensor_parallel": {"autotp_size": 2})",
           R"("tensor_parallel": {"tp": {"tp_size": 2}})",
           R"("expert_parallel": {"enabled": true})",
           R"("pipeline": {"stages": 2})",
           R"("compile": {"deepcompile": true})",
           R"("hybrid_engine": {"enabled": true})",
           R"("checkpoint": {"writer": {}})",
           R"("checkpoint": {"load_universal": true})",
           R"("datastates_ckpt": {})",
           R"("nebula": {"enabled": true})",
           R"("comet": {"enabled": true})",
           R"("elasticity": {"enabled": true})",
           R"("autotuning": {"enabled": true})",
           R"("progressive_layer_drop": {"enabled": true})",
           R"("curriculum_learning": {"enabled": true})",
           R"("data_efficiency": {"enabled": true})",
           R"("compression_training": {"row_pruning": {"shared_parameters": {"enabled": true}}})",
           R"("compression_training": {"layer_reduction": {"enabled": true}})",
           R"("quantize_training": {"eigenvalue": {"enabled": true}})",
           R"("weight_quantization": {})",
           R"("sparse_attention": {})",
           R"("shardwise": {"overlap_parameter_gather": true})",
       }) {
    const std::string error = error_with(members);
    EXPECT_TRUE(contains(error, "is known, not available in this version of shardwise")) << members;
    EXPECT_FALSE(contains(error, "problems:")) << error;
  }
}

TEST(Config, KeysThatDoNothingForOneReasonAreOneNote) {
  const Resolved resolved = load_with(
      R"("bf16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2})");
  ASSERT_EQ(resolved.notes().size(), 1U);
  EXPECT_EQ(resolved.notes()[0],
            "bf16.loss_scale, bf16.initial_scale_power and bf16.hysteresis have no effect: bf16 "
            "has the range of fp32 and needs no loss scale");
  EXPECT_EQ(load_with(R"("bf16": {"enabled": true, "loss_scale": 0})")
                .notes()[0]
                .rfind("bf16.loss_scale has no effect: ", 0),
            0U);
}

TEST(Config, WhatOnlyPythonCarriesOutIsRefusedWithoutIt) {
  for (const char* members :
       {R"("wall_clock_breakdown": true)", R"("comms_logger": {"enabled": true})",
        R"("tensorboard": {"enabled": true})", R"("wandb": {"enabled": true})",
        R"("csv_monitor": {"enabled": true})", R"("flops_profiler": {"enabled": true})",
        R"("activation_checkpointing": {"cpu_checkpointing": true})"}) {
    const Resolved resolved = load_with(members);
    try {
      resolved.require_no_python();
      FAIL() << members;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(contains(error.what(), "acts in the Python front")) << error.what();
    }
  }
  EXPECT_NO_THROW(load_with(R"("csv_monitor": {"output_path": "x"})").require_no_python());
}

TEST(Config, HintsSayWhatToUseInstead) {
  EXPECT_TRUE(contains(error_with(R"("scheduler": {"type": "StepLR"})"),
                       "pass a torch scheduler through initialize(lr_scheduler=)"));
  EXPECT_TRUE(contains(error_with(R"("optimizer": {"type": "lbfgs"})"),
                       "optimizer.type: \"LBFGS\" is known, not available in this version of "
                       "shardwise (its rule needs whole parameters, and shards hold pieces of "
                       "them); write \"Adam\", \"AdamW\", \"SGD\""));
  EXPECT_TRUE(
      contains(error_with(R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}})"),
               "gradient_clipping"));
  EXPECT_TRUE(contains(error_with(R"("amp": {"enabled": true})"), "newer DeepSpeed removed it"));
}

TEST(Config, EachOptimizerHasItsOwnDefaults) {
  const Resolved lion = load_with(R"("optimizer": {"type": "lion"})");
  EXPECT_EQ(lion.config().optimizer.type, "Lion");
  EXPECT_EQ(lion.config().optimizer.params.lr, 1e-4);
  EXPECT_EQ(lion.config().optimizer.params.betas[1], 0.99);
  EXPECT_EQ(lion.origin("optimizer.params.lr"), "default of Lion");
  const Resolved given = load_with(R"("optimizer": {"type": "Adagrad", "params": {"lr": 0.5}})");
  EXPECT_EQ(given.config().optimizer.params.lr, 0.5);
  EXPECT_EQ(given.config().optimizer.params.eps, 1e-10);
  EXPECT_EQ(load_with(R"("optimizer": {"type": "RMSprop"})").value_json("optimizer.params.alpha"),
            "0.99");
  const auto muon = [](const std::string& params) {
    return load_text(R"({"train_batch_size": 8, "optimizer": {"type": "muon", "params": {)" +
                         params + "}}}",
                     {})
        .config()
        .optimizer.params;
  };
  EXPECT_EQ(muon("").muon_lr, 0.02);
  EXPECT_EQ(muon("").adam_lr, 3e-4);
  EXPECT_EQ(muon("").momentum, 0.95);
  EXPECT_EQ(muon(R"("lr": 0.5)").muon_lr, 0.5);
  EXPECT_EQ(muon(R"("lr": 0.5, "muon_lr": null)").adam_lr, 0.5);
  EXPECT_EQ(muon(R"("lr": 0.5, "adam_lr": 0.25)").adam_lr, 0.25);
  EXPECT_TRUE(contains(error_with(R"("optimizer": {"type": "Lion", "params": {"eps": 1}})"),
                       "optimizer.params.eps is not a setting of Lion"));
}

TEST(Config, KeysWithoutEffectAreNoted) {
  const Resolved resolved = load_with(
      R"("zero_optimization": {"contiguous_gradients": true, "round_robin_gradients": true},
         "aio": {"block_size": 4096}, "zero_allow_untested_optimizer": true)");
  EXPECT_EQ(resolved.notes().size(), 3U);
  EXPECT_TRUE(has_note(resolved, "zero_optimization.contiguous_gradients has no effect: "));
  EXPECT_TRUE(has_note(resolved, "aio.block_size has no effect: "));
}

// --- "auto" ---

TEST(Config, AutoNamesAllKeys) {
  const std::string error = error_of(
      R"({"train_batch_size": "auto", "gradient_clipping": "auto",
          "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "scheduler": "auto",
          "zero_optimization": {"stage3_prefetch_bucket_size": "auto"}})");
  EXPECT_TRUE(contains(error, "\"auto\" is filled in by frameworks")) << error;
  EXPECT_TRUE(contains(error, "train_batch_size: an integer >= 1")) << error;
  EXPECT_TRUE(contains(error, "gradient_clipping: a number >= 0, for example 1.0")) << error;
  EXPECT_TRUE(contains(error, "optimizer.params.lr: a number >= 0, for example 0.001")) << error;
  EXPECT_TRUE(contains(error, "zero_optimization.stage3_prefetch_bucket_size: an integer"))
      << error;
  EXPECT_TRUE(contains(error, "scheduler: an object")) << error;
  EXPECT_FALSE(contains(error, "problems:")) << error;
}

TEST(Config, NativeAutosAreValues) {
  EXPECT_EQ(error_with(R"("pipeline": {"stages": "auto"}, "shardwise": {"fused_layers": "auto"},
                          "expert_parallel": {"score_func": "auto", "top_k": "auto"})"),
            "");
}

// --- values against each other ---

TEST(Config, BatchSizesNameTheirOrigins) {
  LoadOptions options;
  options.world_size = 4;
  options.source = "dict";
  options.world_size_origin = "WORLD_SIZE";
  try {
    load_text(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3})", options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "dict: train_batch_size 32 (user (dict)) is not a multiple of "
                 "train_micro_batch_size_per_gpu 3 (user (dict)) x world size 4 (WORLD_SIZE) = 12; "
                 "write 24 or 36");
  }
  EXPECT_TRUE(contains(error_of("{}"), "no batch size is given"));
  EXPECT_TRUE(contains(error_of(R"({"gradient_accumulation_steps": 2})"), "add train_batch_size"));
  EXPECT_TRUE(contains(error_of(R"({"train_batch_size": 0})"), "0 is too small"));
  EXPECT_TRUE(contains(error_of(R"({"train_batch_size": -8})"), "-8 is too small"));
  EXPECT_EQ(load(R"({"train_batch_size": 8, "gradient_accumulation_steps": null})")
                .config()
                .batch.gradient_accumulation_steps,
            1);
}

TEST(Config, WorldSizeBelowOneIsRefused) {
  LoadOptions options;
  options.world_size = 0;
  EXPECT_THROW(load_text(R"({"train_batch_size": 8})", options), ConfigError);
}

TEST(Config, DtypesAreChecked) {
  EXPECT_TRUE(
      contains(error_with(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})"), "both true"));
  EXPECT_TRUE(contains(error_with(R"("data_types": {"grad_accum_dtype": "fp16"},
                                     "bf16": {"enabled": true})"),
                       "\"fp16\" does not fit training in bf16; write \"fp32\" or \"bf16\""));
  EXPECT_TRUE(contains(error_with(R"("data_types": {"param_dtype": "bf16"})"),
                       "does not equal the training dtype fp32"));
  EXPECT_EQ(error_with(R"("data_types": {"param_dtype": "bfloat16"}, "bf16": {"enabled": true})"),
            "");
  const Resolved one = load_with(R"("bf16": {"enabled": true})");
  EXPECT_EQ(one.config().data_types.grad_accum_dtype, "bf16");
  EXPECT_TRUE(contains(one.origin("data_types.grad_accum_dtype"), "derived from"));
  const Resolved several =
      load_with(R"("bf16": {"enabled": true}, "gradient_accumulation_steps": 2)");
  EXPECT_EQ(several.config().data_types.grad_accum_dtype, "fp32");
  EXPECT_EQ(load_with(R"("fp16": {"enabled": false})").config().data_types.grad_accum_dtype,
            "fp32");
  EXPECT_EQ(one.with_train_batch_size(4 * one.config().batch.train_batch_size)
                .config()
                .data_types.grad_accum_dtype,
            "fp32");
}

TEST(Config, SixteenBitMastersSumGradientsInTheirDtype) {
  const Resolved masters = load_with(R"("gradient_accumulation_steps": 2,
      "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})");
  EXPECT_TRUE(masters.config().sixteen_bit_masters());
  EXPECT_FALSE(masters.config().sixteen_bit_states());
  EXPECT_EQ(masters.config().data_types.grad_accum_dtype, "bf16");
  EXPECT_EQ(masters.origin("data_types.grad_accum_dtype"),
            "derived from bf16.bf16_master_weights_and_grads");
  EXPECT_EQ(masters.with_train_micro_batch_size(3).config().data_types.grad_accum_dtype, "bf16");
  EXPECT_TRUE(contains(error_with(R"("bf16": {"enabled": true, "bf16_optimizer_states": true})"),
                       "needs bf16 masters; set bf16.bf16_master_weights_and_grads to true too"));
  const Resolved off = load_with(R"("fp16": {"fp16_master_weights_and_grads": true})");
  EXPECT_FALSE(off.config().sixteen_bit_masters());
  ASSERT_EQ(off.notes().size(), 1U);
  EXPECT_EQ(off.notes()[0],
            "fp16.fp16_master_weights_and_grads has no effect: fp16.enabled is false");
}

TEST(Config, DynamicLossScaleNeedsAPositiveMinimum) {
  EXPECT_TRUE(contains(error_with(R"("fp16": {"enabled": true, "min_loss_scale": 0})"),
                       "fp16.min_loss_scale: 0 does not work with a dynamic loss scale"));
  EXPECT_EQ(error_with(R"("fp16": {"enabled": true, "min_loss_scale": 0, "loss_scale": 8})"), "");
  EXPECT_EQ(error_with(R"("fp16": {"min_loss_scale": 0})"), "");
}

TEST(Config, SumIsNotPossibleAtStage3) {
  EXPECT_TRUE(contains(error_with(R"("gradient_allreduce_op": "sum",
                                     "zero_optimization": {"stage": 3})"),
                       "\"sum\" is not possible with zero_optimization.stage 3"));
  EXPECT_EQ(error_with(R"("gradient_allreduce_op": "sum", "zero_optimization": {"stage": 2})"), "");
}

TEST(Config, OverflowCheckOfBf16SetsNonFinite) {
  const Resolved off = load_with(R"("bf16": {"enabled": true, "check_grad_overflow": false})");
  EXPECT_EQ(off.config().own.non_finite, "apply");
  EXPECT_EQ(off.origin("shardwise.non_finite"), "derived from bf16.check_grad_overflow");
  const Resolved both = load_with(R"("bf16": {"enabled": true, "check_grad_overflow": false},
                                     "shardwise": {"non_finite": "raise"})");
  EXPECT_EQ(both.config().own.non_finite, "raise");
}

TEST(Config, OverlapIsOnWhenNull) {
  EXPECT_TRUE(
      load_with(R"("zero_optimization": {"overlap_comm": null})").config().zero.overlap_comm);
}

TEST(Config, DataParallelSizeMustBeTheWorldSize) {
  EXPECT_EQ(error_with(R"("data_parallel_size": 1)"), "");
  EXPECT_TRUE(contains(error_with(R"("data_parallel_size": 2)"),
                       "data_parallel_size: 2 does not equal world size 1"));
}

TEST(Config, SettingsBelongToTheirOptimizer) {
  EXPECT_TRUE(
      contains(error_with(R"("optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.9]}})"),
               "optimizer.params.betas is not a setting of SGD"));
  EXPECT_TRUE(contains(error_with(R"("optimizer": {"type": "AdamW", "params": {"momentum": 0.9}})"),
                       "optimizer.params.momentum is not a setting of AdamW"));
  EXPECT_TRUE(contains(error_with(R"("optimizer": {"params": {"lr": 1}})"),
                       "optimizer.params is given without optimizer.type"));
  EXPECT_TRUE(contains(error_with(R"("optimizer": {"type": "SGD", "params": {"nesterov": true}})"),
                       "needs momentum > 0"));
  EXPECT_EQ(error_with(R"("optimizer": {"type": "SGD", "params": {"nesterov": true,
                          "momentum": 0.9}})"),
            "");
}

TEST(Config, AdamWAlwaysDecouples) {
  const Resolved adamw = load_with(R"("optimizer": {"type": "AdamW",
                                      "params": {"adam_w_mode": false}})");
  EXPECT_TRUE(adamw.config().optimizer.params.adam_w_mode);
  EXPECT_TRUE(has_note(adamw, "AdamW always decouples"));
  EXPECT_TRUE(load_with(R"("optimizer": {"type": "Adam"})").config().optimizer.params.adam_w_mode);
}

TEST(Config, TheEnvironmentSetsTheTimeout) {
  LoadOptions options;
  options.environment_timeout_seconds = 90;
  const Resolved environment = load_text(R"({"train_batch_size": 8})", options);
  EXPECT_EQ(environment.config().own.timeout_seconds, 90);
  EXPECT_EQ(environment.origin("shardwise.timeout_seconds"), "environment (DEEPSPEED_TIMEOUT)");
  const Resolved document =
      load_text(R"({"train_batch_size": 8, "shardwise": {"timeout_seconds": 5}})", options);
  EXPECT_EQ(document.config().own.timeout_seconds, 5);
}

// --- values that could never work ---

TEST(Config, AStaticLossScaleIsANormalFloat) {
  for (const char* scale : {"1e-300", "1e-40", "1e300"}) {
    const std::string error = error_with(concat(R"("fp16": {"loss_scale": )", scale, "}"));
    EXPECT_TRUE(contains(error, "no normal float32; allowed: 0 (dynamic), or a number from 1.17"))
        << scale << ": " << error;
  }
  EXPECT_NO_THROW(load_with(R"("fp16": {"loss_scale": 1e-37})"));
  EXPECT_NO_THROW(load_with(R"("fp16": {"loss_scale": 0})"));
}

TEST(Config, TheMeanSquareOfRMSpropDecays) {
  EXPECT_TRUE(contains(
      error_with(R"("optimizer": {"type": "RMSprop", "params": {"lr": 1e-3, "alpha": 2}})"),
      "optimizer.params.alpha: 2 is too large for RMSprop"));
  EXPECT_NO_THROW(load_with(R"("optimizer": {"type": "RMSprop", "params": {"alpha": 1}})"));
  EXPECT_NO_THROW(load_with(R"("optimizer": {"type": "ASGD", "params": {"alpha": 2}})"));
}

TEST(Config, JobNamesStayInTheirFolder) {
  for (const std::string name : {"../../x", "/x", "a/b", "..", R"(a\\b)"}) {
    for (const std::string section : {"csv_monitor", "tensorboard"}) {
      EXPECT_TRUE(contains(error_with(concat("\"", section, R"(": {"job_name": ")", name, "\"}")),
                           concat(section, ".job_name: ")))
          << name;
    }
  }
  EXPECT_NO_THROW(load_with(R"("csv_monitor": {"job_name": "run..1"})"));
}

TEST(Config, AKeyWithoutANameIsShown) {
  EXPECT_EQ(error_with(R"("": 1)"), "ds.json: \"\": a key without a name; remove it");
}

// --- changing the batch size ---

TEST(Config, AnotherTrainBatchSizeChangesTheSteps) {
  const Resolved old = load(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4})", 4);
  const Resolved changed = old.with_train_batch_size(48);
  EXPECT_EQ(changed.config().batch.train_batch_size, 48);
  EXPECT_EQ(changed.config().batch.train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(changed.config().batch.gradient_accumulation_steps, 3);
  EXPECT_EQ(changed.origin("train_batch_size"), "set_train_batch_size");
  EXPECT_EQ(changed.value_json("gradient_accumulation_steps"), "3");
  EXPECT_EQ(old.config().batch.train_batch_size, 32);
  try {
    old.with_train_batch_size(40);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "set_train_batch_size: train_batch_size 40 (set_train_batch_size) is not a "
                 "multiple of train_micro_batch_size_per_gpu 4 (user (ds.json)) x world size 4 = "
                 "16; write 32 or 48");
  }
  EXPECT_THROW(old.with_train_batch_size(0), ConfigError);
  EXPECT_THROW(old.with_train_batch_size(-16), ConfigError);
}

TEST(Config, AnotherMicroBatchChangesTheTrainBatchSize) {
  const Resolved changed = load(R"({"train_batch_size": 32, "gradient_accumulation_steps": 2})", 4)
                               .with_train_micro_batch_size(5);
  EXPECT_EQ(changed.config().batch.train_batch_size, 40);
  EXPECT_EQ(changed.config().batch.gradient_accumulation_steps, 2);
  EXPECT_EQ(changed.config().batch.train_micro_batch_size_per_gpu, 5);
}

TEST(Config, TheDocumentMustBeAnObject) {
  for (const char* text : {"[]", "3", "null", "\"x\"", "Infinity"}) {
    EXPECT_TRUE(contains(error_of(text), "a configuration is an object")) << text;
  }
}

}  // namespace
}  // namespace shardwise::config
