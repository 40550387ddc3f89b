// The configuration: one JSON document in DeepSpeed's vocabulary plus the section "shardwise".
//
//   config::Resolved resolved = config::load_argument("ds.json", {.world_size = 4});
//   const config::Config& c = resolved.config();      // typed, validated, nothing left open
//   resolved.origin("train_batch_size");              // "derived from ..."
//
// Every key is declared once, in the field lists (fields_*.cpp): JSON name, default, range, meaning
// and what this version does with it. The structs below hold the keys that something reads; all
// other known keys are reachable through Resolved::value_json. Reading needs no process group, no
// GPU and no torch. Everything here throws ConfigError with all problems of the document in one
// message (IoError where a file cannot be read), and is safe to call from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::config {

// Solved: train_batch_size == train_micro_batch_size_per_gpu * gradient_accumulation_steps * world.
struct BatchConfig {
  std::int64_t train_batch_size = 0;
  std::int64_t train_micro_batch_size_per_gpu = 0;
  std::int64_t gradient_accumulation_steps = 0;
};

// Sizes are counted in elements, as DeepSpeed counts them.
struct ZeroConfig {
  int stage = 0;                                  // 0-3
  bool overlap_comm = true;                       // gather ahead and reduce behind the computation
  std::int64_t reduce_bucket_size = 500'000'000;  // gradient elements in flight
  std::int64_t allgather_bucket_size = 500'000'000;    // accepted, nothing reads it
  std::int64_t prefetch_bucket_size = 50'000'000;      // elements gathered ahead
  std::int64_t param_persistence_threshold = 100'000;  // units up to this size stay gathered
  std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_live_parameters = 1'000'000'000;  // gathered elements at one time
  std::int64_t max_reuse_distance = 0;     // elements between uses of a unit that stays gathered
  std::string offload_optimizer = "none";  // where masters and states rest: none (device), cpu
  std::vector<std::string> leaf_module_classes;
  std::vector<std::string> leaf_module_names;
  std::vector<std::string> leaf_module_suffixes;
};

struct Fp16Config {
  bool enabled = false;
  bool auto_cast = false;  // cast floating-point inputs of forward to fp16
  double loss_scale = 0;   // 0: dynamic
  int initial_scale_power = 16;
  int loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool master_weights_and_grads = false;  // masters and gradients in fp16
};

struct Bf16Config {
  bool enabled = false;
  bool check_grad_overflow = true;  // false makes shardwise.non_finite "apply" unless that is given
  bool master_weights_and_grads = false;  // masters and gradients in bf16
  bool optimizer_states = false;          // states of the update rule in bf16 too
};

struct DataTypesConfig {
  std::string grad_accum_dtype;  // always resolved: "fp32", "fp16" or "bf16"
};

// fp32 parameters under torch.autocast.
struct AutocastConfig {
  bool enabled = false;
  std::string dtype;  // bf16, fp16; "" while not enabled
};

struct OptimizerParams {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool adam_w_mode = true;  // decoupled weight decay; always true for AdamW
  bool torch_adam = false;  // accepted: there is one Adam here, and it follows torch's arithmetic
  bool amsgrad = false;     // torch's class carries the rule out
  bool maximize = false;    // likewise
  double momentum = 0;      // SGD
  double dampening = 0;     // SGD
  bool nesterov = false;    // SGD
  double lr_decay = 0;      // Adagrad
  double initial_accumulator_value = 0;  // Adagrad
  double max_coeff = 10;                 // Lamb
  double min_coeff = 0.01;               // Lamb
  bool eps_inside_sqrt = false;          // Lamb
  double muon_lr = 0.02;                 // Muon: of matrices
  double adam_lr = 3e-4;                 // Muon: of all else
  std::string ns_method = "gram";        // Muon: gram, standard
};

struct OptimizerConfig {
  std::string type;  // "AdamW", ...; "" when the configuration names none
  OptimizerParams params;
};

// Lists hold one value for all parameter groups, or one for each.
struct SchedulerParams {
  std::vector<double> lr_range_test_min_lr = {1e-3};
  std::int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
  std::vector<double> cycle_min_lr;
  std::vector<double> cycle_max_lr;
  double decay_lr_rate = 0;
  std::int64_t cycle_first_step_size = 2000;
  std::int64_t cycle_second_step_size = 0;     // 0: as many as the first
  std::int64_t cycle_first_stair_count = 0;    // 0: no stairs
  std::int64_t cycle_second_stair_count = -1;  // -1: as many as the first
  std::int64_t decay_step_size = 0;            // 0: no decay
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
  std::vector<double> warmup_min_lr = {0};
  std::vector<double> warmup_max_lr;  // empty: the optimizer's own rates
  std::int64_t warmup_num_steps = 1000;
  std::string warmup_type = "log";   // log, linear
  std::int64_t total_num_steps = 0;  // WarmupDecayLR and WarmupCosineLR: always given
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
  std::int64_t last_batch_iteration = -1;
};

struct SchedulerConfig {
  std::string type;  // "WarmupLR", ...; "" when the configuration names none
  SchedulerParams params;
};

// Steps that rank 0 records; see diagnostics/trace_recorder.h.
struct TraceConfig {
  std::int64_t first_step = 0;  // counted from 1; 0: no trace
  std::int64_t steps = 3;
  std::string path = "trace.json";
};

// The section "shardwise".
struct OwnConfig {
  std::vector<std::string> units;  // block class names or module paths; empty: found by repetition
  bool strict = true;              // false: unknown keys become notes
  bool deterministic = false;
  std::string fused_layers = "auto";             // auto, on, off
  std::string activation_checkpointing = "off";  // off, selective, full
  std::string fp8 = "off";                       // off, tensorwise, rowwise
  std::string non_finite = "skip";               // skip, raise, apply
  bool overlap_parameter_gather = false;         // always false in this version
  int hybrid_shard_size = 0;                     // ranks that share one copy of the state; 0: all
  std::int64_t check_replicas_every = 0;         // steps between checks that copies agree; 0: never
  bool token_weighted_loss = false;  // losses count by their tokens, not by micro-batches
  int max_ctas = 0;                  // thread blocks of a collective on a GPU; 0: NCCL decides
  bool force_communication = false;  // run every collective even with one process
  bool keep_last_unit = true;        // stage 3: no gather between forward and backward
  bool poison_released = false;      // fill gather buffers with NaN on release
  double timeout_seconds = 300;
  TraceConfig trace;
};

struct Config {
  BatchConfig batch;
  ZeroConfig zero;
  Fp16Config fp16;
  Bf16Config bf16;
  DataTypesConfig data_types;
  AutocastConfig autocast;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  OwnConfig own;
  double gradient_clipping = 1.0;              // largest global norm; 0: off
  std::string gradient_allreduce_op = "mean";  // mean, sum
  std::string communication_data_type;         // "": the gradient's own
  std::int64_t steps_per_print = 0;            // 0: never
  bool dataloader_drop_last = false;

  // "fp32", "fp16" or "bf16".
  std::string model_dtype() const;
  // Whether losses are multiplied by a scale, because gradients pass through fp16.
  bool scales_loss() const {
    return fp16.enabled || (autocast.enabled && autocast.dtype == "fp16");
  }
  // Whether 16-bit parameters are their own masters.
  bool sixteen_bit_masters() const {
    return (fp16.enabled && fp16.master_weights_and_grads) ||
           (bf16.enabled && bf16.master_weights_and_grads);
  }
  // Whether their states are in the training dtype too.
  bool sixteen_bit_states() const { return bf16.enabled && bf16.optimizer_states; }
};

struct LoadOptions {
  // Data-parallel ranks, >= 1.
  std::int64_t world_size = 1;
  // Names the document in errors and origins: a file name, or "the configuration dict".
  std::string source = "config";
  // Where the world size came from, for explanations: "WORLD_SIZE", "process group", ...
  std::string world_size_origin = "";
  // Seconds for shardwise.timeout_seconds from the environment; 0: none. The document wins.
  double environment_timeout_seconds = 0;
};

// A validated document: the typed structs, and value and origin of every known key.
class Resolved {
 public:
  struct State;
  explicit Resolved(std::shared_ptr<const State> state);

  const Config& config() const;

  // The resolved value of a known key or of a whole section, as JSON text. Other names (aliases) of
  // a key work too. Throws ConfigError, with the nearest names, for an unknown path.
  std::string value_json(std::string_view path) const;

  // "user (ds.json)", "default", "derived from ...", "environment (DEEPSPEED_TIMEOUT)".
  std::string origin(std::string_view path) const;

  // Every key that acts and every key that the document gave. Without origins: a nested document
  // that can be loaded again. With origins: {"zero_optimization.stage": {"value":…, "origin":…},
  // …}.
  std::string to_json(bool with_origins) const;

  // One line each: keys that have no effect and why, old names, and unknown keys when not strict.
  const std::vector<std::string>& notes() const;

  std::int64_t world_size() const;

  // For programs without Python: a ConfigError that names the keys which only the Python front
  // carries out, if one of them asks for something.
  void require_no_python() const;

  // The same configuration with another train_batch_size: the micro-batch stays and the
  // accumulation steps change. Throws ConfigError with the numbers when they do not divide.
  Resolved with_train_batch_size(std::int64_t train_batch_size) const;

  // The same configuration with another micro-batch: the accumulation steps stay and
  // train_batch_size changes.
  Resolved with_train_micro_batch_size(std::int64_t micro_batch_size) const;

 private:
  std::shared_ptr<const State> state_;
};

// JSON text. Comments (//, /* */, #), trailing commas and Python's Infinity and NaN are understood;
// a key given twice in one object is an error.
Resolved load_text(std::string_view json_text, const LoadOptions& options);

// A JSON file as above. `options.source` is replaced by the path.
Resolved load_file(const std::string& path, const LoadOptions& options);

// What frameworks pass as `config`: the path of a file, or a JSON object in (urlsafe) base64.
Resolved load_argument(const std::string& path_or_base64, const LoadOptions& options);

// Paths of all keys in the order of the field list ("zero_optimization.stage", ...); "*" stands for
// any name and "[]" for each element of a list.
std::vector<std::string> known_keys();

// The reference page docs/config.md, made from the field list.
std::string reference_markdown();

}  // namespace shardwise::config
