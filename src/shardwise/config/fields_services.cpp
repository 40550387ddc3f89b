// Checkpoints, disks, monitors, profilers and searches around a training run.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

void add_profiler_fields(FieldList& list) {
  list.section("comms_logger",
               "Counts and times of collectives, for shardwise.comm.log_summary().");
  list.in_python("comms_logger.enabled", boolean(false), "Turn it on.");
  list.parts("comms_logger.enabled", "comms_logger.",
             {{"verbose", boolean(false), "Print each call of a function of shardwise.comm."},
              {"prof_all", boolean(true), "Log all operations."},
              {"debug", boolean(false), "Print its caller, too."},
              {"prof_ops", words({}), "Operations to log."}});
  list.section("flops_profiler", "Operations, parameters and time of each module.");
  list.in_python("flops_profiler.enabled", boolean(false), "Turn it on.");
  list.parts("flops_profiler.enabled", "flops_profiler.",
             {{"recompute_fwd_factor", number(0.0).min(0),
               "Share of forward done again; unused, since that is counted."},
              {"profile_step", integer(1).min(0), "Step that is measured."},
              {"module_depth", integer(-1), "Depth of the table; -1: all."},
              {"top_modules", integer(1).min(0), "Modules in the summary."},
              {"detailed", boolean(true), "Print the whole table."},
              {"output_file", text("").or_null(), "File for the table."}});
}

void add_elasticity_fields(FieldList& list) {
  list.section("elasticity", "Batch sizes that fit many numbers of ranks.").removed();
  list.unavailable("elasticity.enabled", boolean(false), "Turn it on.").removed();
  list.parts("elasticity.enabled", "elasticity.",
             {{"max_train_batch_size", integer(2000).min(1), "Largest batch."},
              {"micro_batch_sizes", integers({2, 4, 6}).min(1), "Micro-batches to choose from."},
              {"min_gpus", integer(1).min(1), "Fewest devices."},
              {"max_gpus", integer(10000).min(1), "Most devices."},
              {"num_gpus_per_node", integer(1).min(1), "Devices of a node."},
              {"model_parallel_size", integer(1).min(1), "Ranks of one model."},
              {"min_time", integer(0).min(0), "Minutes between changes."},
              {"prefer_larger_batch", boolean(true), "Prefer the larger batch."},
              {"ignore_non_elastic_batch_info", boolean(false), "Ignore the batch keys."},
              {"version", number(0.2), "Version of the scheme."}});
}

void add_autotuning_fields(FieldList& list) {
  list.section("autotuning", "Search for the fastest configuration.");
  list.unavailable("autotuning.enabled", boolean(false), "Turn it on.");
  list.parts(
      "autotuning.enabled", "autotuning.",
      {{"fast", boolean(true), "Search a small space."},
       {"results_dir", text("").or_null(), "Folder of results."},
       {"exps_dir", text("").or_null(), "Folder of experiments."},
       {"overwrite", boolean(true), "Run experiments again."},
       {"start_profile_step", integer(3).min(0), "First step measured."},
       {"end_profile_step", integer(5).min(0), "Last step measured."},
       {"metric", one_of({"throughput", "latency", "flops", "forward"}, "throughput"), "Aim."},
       {"metric_path", text("").or_null(), "File of measurements."},
       {"tuner_type", one_of({"gridsearch", "random", "model_based"}, "gridsearch"), "Search."},
       {"tuner_early_stopping", integer(5).min(0), "Trials without gain before it ends."},
       {"tuner_num_trials", integer(50).min(1), "Most trials."},
       {"arg_mappings", object(), "Arguments of the script that set a key."},
       {"model_info_path", text("").or_null(), "File with facts about the model."},
       {"mp_size", integer(1).min(1), "Ranks of one model."},
       {"max_train_batch_size", integer(0).or_null().min(1), "Largest batch."},
       {"min_train_batch_size", integer(1).min(1), "Smallest batch."},
       {"max_train_micro_batch_size_per_gpu", integer(1024).min(1), "Largest micro-batch."},
       {"min_train_micro_batch_size_per_gpu", integer(1).min(1), "Smallest micro-batch."},
       {"num_tuning_micro_batch_sizes", integer(3).min(1), "Micro-batches to try."}});
  list.section("autotuning.model_info", "Facts about the model.");
  list.parts("autotuning.enabled", "autotuning.model_info.",
             {{"profile", boolean(false), "Measure them first."},
              {"num_params", integer(0).or_null(), "Parameters."},
              {"hidden_size", integer(0).or_null(), "Hidden size."},
              {"num_layers", integer(0).or_null(), "Layers."}});
}

}  // namespace

void add_checkpoint_fields(FieldList& list) {
  list.section("checkpoint", "Saving and loading.");
  Shape validation = one_of({"WARN", "IGNORE", "FAIL"}, "WARN");
  validation.any_case = true;
  list.no_effect("checkpoint.tag_validation", validation,
                 "What happens when ranks save under different names.",
                 "this version writes no checkpoints");
  list.unavailable("checkpoint.load_universal", boolean(false), "Load a universal checkpoint.");
  list.unavailable("checkpoint.use_node_local_storage", boolean(false),
                   "Save on the disk of each node.");
  list.section("checkpoint.parallel_write", "Which ranks write.");
  list.unavailable("checkpoint.parallel_write.pipeline_stage", boolean(false),
                   "Each stage writes its own layers.");
  list.no_effect("checkpoint.checkpoint_serialization", boolean(true), "Use torch's zip format.",
                 "this version writes no checkpoints");
  list.section("checkpoint.writer", "A faster writer.").on_when_present();
  list.parts("checkpoint.writer", "checkpoint.writer.",
             {{"type", one_of({"MOCK", "PYTHON", "FAST"}, "FAST"), "Which writer."},
              {"io_buffer_size", integer(64 << 20).min(1), "Bytes of its buffer."},
              {"io_buffer_double", boolean(true), "Use two buffers."},
              {"io_multiplier", integer(1).min(1), "Buffers of a rank."},
              {"show_statistics", boolean(false), "Print its speed."},
              {"data_parallel", one_of({"REPLICA", "SOCKET", "MACHINE"}, "").or_null(),
               "Which ranks share the work."},
              {"decoupled", boolean(false), "Write in another process."}});

  list.section("nebula", "Checkpoints through Azure Nebula.").removed();
  list.unavailable("nebula.enabled", boolean(false), "Turn it on.").removed();
  list.parts("nebula.enabled", "nebula.",
             {{"nebula_load_path", text("").or_null(), "Where to load from."},
              {"enable_nebula_load", boolean(true), "Load through it."},
              {"persistent_storage_path", text("").or_null(), "Where to save."},
              {"persistent_time_interval", integer(100).min(1), "Seconds between saves."},
              {"num_of_version_in_retention", integer(2).min(1), "Saves to keep."}});
  list.section("datastates_ckpt", "Checkpoints through DataStates.").on_when_present();
  list.part("datastates_ckpt", "datastates_ckpt.host_cache_size", number(0).or_null(),
            "Gigabytes of host memory.");

  const char* no_disk = "it tunes offload to NVMe, which is not on";
  list.section("aio", "Asynchronous I/O for offload to NVMe.");
  list.no_effect("aio.block_size", integer(1 << 20).min(1), "Bytes of one request.", no_disk);
  list.no_effect("aio.queue_depth", integer(8).min(1), "Requests in flight.", no_disk);
  list.no_effect("aio.intra_op_parallelism", integer(1).min(1), "Threads of a request.", no_disk);
  list.no_effect("aio.single_submit", boolean(false), "Submit one by one.", no_disk);
  list.no_effect("aio.overlap_events", boolean(true), "Submit while waiting.", no_disk);
  list.no_effect("aio.use_gds", boolean(false), "Read straight into device memory.", no_disk);
  list.no_effect("aio.thread_count", integer(1).min(1), "In old documentation only.", no_disk);
}

void add_monitor_fields(FieldList& list) {
  for (const std::string name : {"tensorboard", "csv_monitor"}) {
    list.section(name, "Scalars written by this monitor.");
    list.in_python(name + ".enabled", boolean(false), "Turn it on.");
    list.parts(name + ".enabled", name + ".",
               {{"output_path", text(""),
                 "Folder that gets a folder job_name with its files. \"\": the working directory."},
                {"job_name", text("DeepSpeedJobName"), "Name of the run."}});
  }
  list.section("wandb", "Scalars sent to Weights & Biases.");
  list.in_python("wandb.enabled", boolean(false), "Turn it on.");
  list.parts("wandb.enabled", "wandb.",
             {{"group", text("").or_null(), "Group of runs."},
              {"team", text("").or_null(), "Team."},
              {"project", text("deepspeed"), "Project."}});
  list.section("comet", "Scalars sent to Comet.");
  list.unavailable("comet.enabled", boolean(false), "Turn it on.")
      .instead("csv_monitor, tensorboard and wandb are there");
  list.parts("comet.enabled", "comet.",
             {{"samples_log_interval", integer(100).min(1), "Samples between messages."},
              {"project", text("").or_null(), "Project."},
              {"workspace", text("").or_null(), "Workspace."},
              {"api_key", text("").or_null(), "Key."},
              {"experiment_name", text("").or_null(), "Name of the run."},
              {"experiment_key", text("").or_null(), "Key of the run."},
              {"online", boolean(true).or_null(), "Send at once."},
              {"mode", text("").or_null(), "get, create or get_or_create."}});
  add_profiler_fields(list);
}

void add_tuning_fields(FieldList& list) {
  add_elasticity_fields(list);
  add_autotuning_fields(list);
  list.accepted("msamp", object(), "Settings of MS-AMP, which accelerate applies itself.",
                "accelerate");
}

}  // namespace shardwise::config
