// Batch sizes, gradients, logging, and our own section.
#include "shardwise/config/field.h"

namespace shardwise::config {

void add_batch_fields(FieldList& list) {
  list.acts("train_batch_size", integer(0).or_null().min(1),
            "Samples in one optimizer step over all ranks: micro-batch x accumulation x ranks.",
            SW_MEMBER(batch.train_batch_size))
      .derived();
  list.acts("train_micro_batch_size_per_gpu", integer(0).or_null().min(1),
            "Samples in one forward and backward pass of one rank.",
            SW_MEMBER(batch.train_micro_batch_size_per_gpu))
      .derived();
  list.acts("gradient_accumulation_steps", integer(0).or_null().min(1),
            "Forward and backward passes that make one optimizer step.",
            SW_MEMBER(batch.gradient_accumulation_steps))
      .derived();
  list.unavailable("managed_gradient_accumulation", boolean(true),
                   "The engine counts micro-batches; false leaves the boundary to the caller.");
  list.acts("dataloader_drop_last", boolean(false),
            "Drop the last incomplete batch of the loader made from training_data.",
            SW_MEMBER(dataloader_drop_last));
  list.checked("data_parallel_size", integer(0).or_null().min(1),
               "Data-parallel ranks; must equal the ranks that there are.");
  list.unavailable("sequence_parallel_size", integer(1).null_too().min(1),
                   "Ranks that share one sequence.")
      .also_off(Value::null());
}

void add_gradient_fields(FieldList& list) {
  list.acts("gradient_clipping", number(0).min(0),
            "Largest global gradient norm; larger gradients are scaled down to it. 0: off.",
            SW_MEMBER(gradient_clipping));
  list.acts("gradient_allreduce_op", one_of({"mean", "sum"}, "mean"),
            "How gradients of the ranks combine. sum is not possible at stage 3.",
            SW_MEMBER(gradient_allreduce_op));
  list.acts("communication_data_type", dtype("fp32").or_null(),
            "Dtype in which gradients travel; null: their own.",
            SW_MEMBER(communication_data_type));
  list.unavailable("seq_parallel_communication_data_type", dtype("fp32"),
                   "Dtype of gradient sums over sequence-parallel ranks.");
  list.unavailable("prescale_gradients", boolean(false),
                   "Divide gradients before they are summed instead of after.");
  list.unavailable("gradient_predivide_factor", number(1.0).above(0),
                   "Part of the division that happens before the sum.");
  list.unavailable("sparse_gradients", boolean(false),
                   "Send embedding gradients as index and row lists.")
      .removed();
  list.no_effect("disable_allgather", boolean(false),
                 "Replace all-gather by broadcasts after the update.",
                 "updated parameters come back in one all-gather a unit");
  list.unavailable("graph_harvesting", boolean(false), "Capture the update as a CUDA graph.")
      .removed();
  list.no_effect("allgather_size", integer(500'000'000).min(0),
                 "Old all-gather bucket, used with \"zero_optimization\": true.",
                 "units are gathered whole");
  list.no_effect("vocabulary_size", integer(0).or_null().min(1),
                 "Vocabulary size, for a warning about its alignment.",
                 "sizes need no alignment here");
  list.unavailable("use_data_before_expert_parallelism", boolean(false),
                   "Order of data and expert ranks.");
}

void add_logging_fields(FieldList& list) {
  list.acts("steps_per_print", integer(0).or_null().min(0).inf_as_null(),
            "Optimizer steps between progress lines; null, 0 or Infinity: never.",
            SW_MEMBER(steps_per_print));
  list.in_python("wall_clock_breakdown", boolean(false),
                 "Print the time of forward, backward and step with the progress lines, or after "
                 "each step where there are none.");
  list.unavailable("memory_breakdown", boolean(false), "Print memory use in each step.");
  list.unavailable("dump_state", boolean(false), "Print the engine's state at initialisation.");
  list.unavailable("log_level",
                   one_of({"debug", "info", "warning", "error", "critical"}, "info").or_null(),
                   "Lowest level of log lines.");
  list.section("timers", "Timers.");
  list.section("timers.throughput", "The timer of samples per second.");
  list.in_python("timers.throughput.enabled", boolean(true),
                 "Samples per second in the progress lines.");
  list.no_effect("timers.throughput.synchronized", boolean(true),
                 "Wait for the device when the time is read.", "a progress line waits anyway");
}

namespace {

// A year: longer ones only risk overflow.
constexpr double kLongestTimeoutSeconds = 365.0 * 24 * 3600;
constexpr int kMostCtas = 64;  // NCCL has no more channels

// "auto", "on" or "off"; true and false are on and off.
Shape switch_or_auto() {
  Shape shape = one_of({"auto", "on", "off"}, "auto");
  shape.spellings = {{"true", "on"}, {"false", "off"}};
  shape.bool_spells = true;
  shape.described = "\"auto\", true or false (\"on\" or \"off\")";
  return shape;
}

void add_trace_fields(FieldList& list) {
  list.section(
      "shardwise.trace",
      "A trace of a few steps of rank 0, which chrome://tracing and ui.perfetto.dev show.");
  list.acts("shardwise.trace.first_step", integer(0).min(0),
            "Optimizer step, counted from 1, with which it begins; 0: no trace.",
            SW_MEMBER(own.trace.first_step));
  list.acts("shardwise.trace.steps", integer(0).min(1), "Optimizer steps that it covers.",
            SW_MEMBER(own.trace.steps));
  list.acts("shardwise.trace.path", text(""),
            "File for it; a relative path is taken from a job file's folder, in Python from the "
            "working directory.",
            SW_MEMBER(own.trace.path));
}

}  // namespace

void add_own_fields(FieldList& list) {
  list.section("shardwise", "Settings that DeepSpeed does not have.");
  list.acts("shardwise.units", words({}),
            "Block class names or module paths whose parameters form one unit each; empty: the "
            "blocks that repeat in the model.",
            SW_MEMBER(own.units));
  list.acts("shardwise.strict", boolean(true), "Unknown keys are errors; false: they become notes.",
            SW_MEMBER(own.strict));
  list.acts("shardwise.deterministic", boolean(false),
            "Use only kernels and algorithms that give the same bits in every run.",
            SW_MEMBER(own.deterministic));
  list.acts("shardwise.non_finite", one_of({"skip", "raise", "apply"}, "skip"),
            "What a step with NaN or infinite gradients does in fp32 and bf16. apply: update "
            "anyway. fp16 always skips.",
            SW_MEMBER(own.non_finite))
      .derived();
  list.acts("shardwise.force_communication", boolean(false),
            "Run every collective even with one process.", SW_MEMBER(own.force_communication));
  list.acts("shardwise.keep_last_unit", boolean(true),
            "Keep the unit that forward releases last gathered for backward, which needs it first.",
            SW_MEMBER(own.keep_last_unit));
  list.acts(
      "shardwise.max_reuse_distance", integer(0).min(0),
      "Keep a unit gathered that is used again after fewer elements of others than this (stage 3): "
      "fewer gathers for more memory, up to zero_optimization.max_live_parameters.",
      SW_MEMBER(zero.max_reuse_distance));
  list.acts("shardwise.max_ctas", integer(0).min(0).max(kMostCtas),
            "Thread blocks that a collective may take from the computation on a GPU. 0: NCCL "
            "decides.",
            SW_MEMBER(own.max_ctas));
  list.acts("shardwise.poison_released", boolean(false),
            "Fill gather buffers with NaN on release, so that a stale read shows.",
            SW_MEMBER(own.poison_released));
  list.acts("shardwise.timeout_seconds", number(0).above(0).max(kLongestTimeoutSeconds),
            "Seconds after which a collective that does not finish is an error.",
            SW_MEMBER(own.timeout_seconds))
      .derived();
  list.acts("shardwise.fused_layers", switch_or_auto(),
            "Carry out the layers of Hugging Face models of known families by our own operations. "
            "auto: on GPUs, and where fp8 needs them; true: on CPUs too; false: nowhere.",
            SW_MEMBER(own.fused_layers));
  list.acts("shardwise.activation_checkpointing", one_of({"off", "selective", "full"}, "off"),
            "What backward computes again instead of keeping it. full: all activations of each "
            "block; selective: those of a block that are cheap to compute (no matrix products, no "
            "attention).",
            SW_MEMBER(own.activation_checkpointing));
  list.acts(
      "shardwise.fp8", one_of({"off", "tensorwise", "rowwise"}, "off"),
      "Carry out the products of the blocks in fp8, with scales of the present values; needs "
      "bf16. tensorwise: one scale a matrix (E4M3, gradients E5M2); rowwise: one for each row "
      "that is contracted, a power of two (E4M3).",
      SW_MEMBER(own.fp8));
  Field& overlap = list.unavailable("shardwise.overlap_parameter_gather", boolean(false),
                                    "Gather updated parameters behind the next forward.");
  FieldList::bind(overlap, SW_MEMBER(own.overlap_parameter_gather));
  list.acts("shardwise.token_weighted_loss", boolean(false),
            "Micro-batches count by their target tokens, so that the mean over tokens does not "
            "depend on how samples are split over ranks and micro-batches.",
            SW_MEMBER(own.token_weighted_loss));
  list.acts("shardwise.check_replicas_every", integer(0).min(0),
            "Steps between checks that all ranks' copies of parameters have the same bits; a "
            "difference is an error that names the parameter. At stages 1 and 2 an update gathers "
            "each slice from the rank that owns it, so that only drift that survives an update, of "
            "frozen parameters for one, is found. 0: never.",
            SW_MEMBER(own.check_replicas_every));
  list.acts("shardwise.hybrid_shard_size", integer(0).min(0),
            "Neighbouring ranks that share one copy of the model states; the other groups of as "
            "many hold replicas. 0: all ranks.",
            SW_MEMBER(own.hybrid_shard_size))
      .derived();
  add_trace_fields(list);
}

}  // namespace shardwise::config
