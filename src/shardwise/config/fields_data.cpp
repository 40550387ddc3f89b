// Data efficiency: curricula, dynamic batches, dropped tokens and layers.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

const char* const kScheduleTypes = "fixed_linear, fixed_root, fixed_discrete or custom.";

// The keys of a difficulty schedule, which two sections share.
void add_schedule(FieldList& list, const std::string& gate, const std::string& prefix) {
  list.parts(gate, prefix,
             {{"min_difficulty", integer(0).or_null(), "First difficulty."},
              {"max_difficulty", integer(0).or_null(), "Last difficulty."},
              {"schedule_type",
               one_of({"fixed_linear", "fixed_root", "fixed_discrete", "custom"}, "").or_null(),
               kScheduleTypes}});
  list.section(prefix + "schedule_config", "Its numbers.");
  list.parts(gate, prefix + "schedule_config.",
             {{"total_curriculum_step", integer(0).or_null(), "Steps of the curriculum."},
              {"difficulty_step", integer(0).or_null(), "Granularity of the difficulty."},
              {"root_degree", integer(0).or_null(), "Degree of the root."},
              {"difficulty", any(), "Difficulties of the intervals."},
              {"max_step", any(), "Last steps of the intervals."}});
}

void add_sampling_fields(FieldList& list, const std::string& gate) {
  const std::string sampling = "data_efficiency.data_sampling.";
  list.section("data_efficiency.data_sampling", "Which samples are taken.");
  list.parts(gate, sampling,
             {{"enabled", boolean(false), "Turn it on."},
              {"num_epochs", integer(1000).min(1), "Epochs."},
              {"num_workers", integer(0).min(0), "Loader processes."},
              {"pin_memory", boolean(false), "Pin batches."}});
  const std::string curriculum = sampling + "curriculum_learning";
  list.section(curriculum, "Easy samples first.");
  list.parts(gate, curriculum + ".",
             {{"enabled", boolean(false), "Turn it on."},
              {"data_cluster_path", text("").or_null(), "Folder of clusters."},
              {"curriculum_metrics", map(), "Measures of difficulty by name."}});
  const std::string metric = curriculum + ".curriculum_metrics.*.";
  list.parts(gate, metric,
             {{"index_to_sample_path", text("").or_null(), "File of samples."},
              {"index_to_metric_path", text("").or_null(), "File of difficulties."},
              {"difficulty_type", one_of({"value", "percentile"}, "").or_null(), "Its unit."},
              {"clustering_type", text("").or_null(), "How samples are grouped."}});
  add_schedule(list, gate, metric);
  const std::string batching = sampling + "dynamic_batching";
  list.section(batching, "Batches of equal tokens.");
  list.parts(gate, batching + ".",
             {{"enabled", boolean(false), "Turn it on."},
              {"metrics_path", text("").or_null(), "Folder of lengths."},
              {"lr_scaling_method", text("linear"), "How the rate follows the batch."},
              {"min_batch_size", integer(1).min(1), "Smallest batch."},
              {"max_batch_size", integer(0).or_null().min(1), "Largest batch."},
              {"sequence_picking_order", text("dataloader"), "Order of sequences."},
              {"max_tokens", integer(0).or_null().min(1), "Tokens of a batch."},
              {"verbose", boolean(false), "Print the batches."}});
}

void add_routing_fields(FieldList& list, const std::string& gate) {
  const std::string ltd = "data_efficiency.data_routing.random_ltd";
  list.section("data_efficiency.data_routing", "Which tokens pass through a layer.");
  list.part(gate, "data_efficiency.data_routing.enabled", boolean(false), "Turn it on.");
  list.section(ltd, "Drop random tokens in middle layers.");
  list.parts(gate, ltd + ".",
             {{"enabled", boolean(false), "Turn it on."},
              {"total_layer_num", integer(0).or_null(), "Layers."},
              {"random_ltd_layer_num", integer(0).or_null(), "Layers that drop tokens."},
              {"random_ltd_layer_id", integers({}).or_null(), "Their numbers."},
              {"model_mask_name", text("").or_null(), "Argument with the mask."},
              {"model_type", text("").or_null(), "decoder or encoder."},
              {"hidden_state_order", text("").or_null(), "Order of dimensions."}});
  list.section(ltd + ".random_ltd_schedule", "Tokens kept over time.");
  list.parts(gate, ltd + ".random_ltd_schedule.",
             {{"min_value", integer(0).or_null(), "First number of tokens."},
              {"max_value", integer(0).or_null(), "Last number of tokens."},
              {"schedule_type", text("").or_null(), "Form of the growth."}});
  list.section(ltd + ".random_ltd_schedule.schedule_config", "Its numbers.");
  list.parts(gate, ltd + ".random_ltd_schedule.schedule_config.",
             {{"require_steps", integer(0).or_null(), "Steps of the growth."},
              {"seq_per_step", integer(0).or_null(), "Tokens added in a step."}});
  list.section(ltd + ".layer_token_lr_schedule", "Learning rate by tokens and layers.");
  list.part(gate, ltd + ".layer_token_lr_schedule.enabled", boolean(false), "Turn it on.");
  list.part(gate, ltd + ".layer_token_lr_schedule.*", any(), "Its numbers.");
}

}  // namespace

void add_data_fields(FieldList& list) {
  list.section("progressive_layer_drop", "Skip layers at random, more over time.").removed();
  list.unavailable("progressive_layer_drop.enabled", boolean(false), "Turn it on.").removed();
  list.parts("progressive_layer_drop.enabled", "progressive_layer_drop.",
             {{"theta", number(1.0), "Share of layers kept in the end."},
              {"gamma", number(0.001), "Speed of the change."}});

  list.section("curriculum_learning", "Short sequences first (old form).").removed();
  list.unavailable("curriculum_learning.enabled", boolean(false), "Turn it on.").removed();
  list.part("curriculum_learning.enabled", "curriculum_learning.curriculum_type", text("seqlen"),
            "What grows.");
  add_schedule(list, "curriculum_learning.enabled", "curriculum_learning.");

  const std::string gate = "data_efficiency.enabled";
  list.section("data_efficiency", "Sampling and routing of data.");
  list.unavailable(gate, boolean(false), "Turn it on.");
  list.part(gate, "data_efficiency.seed", integer(1234), "Seed of the sampling.");
  add_sampling_fields(list, gate);
  add_routing_fields(list, gate);
}

}  // namespace shardwise::config
