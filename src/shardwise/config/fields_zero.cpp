// The section zero_optimization.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

std::string zero(const char* name) { return std::string("zero_optimization.") + name; }

void add_sharding_fields(FieldList& list) {
  list.section("zero_optimization",
               "What is sharded over the ranks. A bool is taken as stage 1 or 0 (old form).");
  list.acts(zero("stage"), integer(0).range(0, 3),
            "0: nothing, 1: optimizer states, 2: and gradients, 3: and parameters.",
            SW_MEMBER(zero.stage));
  list.acts(zero("overlap_comm"), boolean(true).null_too(),
            "Gather units ahead of their use (stage 3). The results do not depend on it.",
            SW_MEMBER(zero.overlap_comm));
  list.acts(zero("reduce_bucket_size"), integer(0).min(0),
            "Gradient elements that may be in flight before backward waits.",
            SW_MEMBER(zero.reduce_bucket_size));
  list.acts(zero("prefetch_bucket_size"), integer(0).min(0),
            "0: nothing is gathered ahead (stage 3); up to one unit: one unit; else two units.",
            SW_MEMBER(zero.prefetch_bucket_size))
      .alias("stage3_prefetch_bucket_size");
  list.acts(zero("param_persistence_threshold"), integer(0).min(0),
            "Units with at most this many elements stay gathered (stage 3).",
            SW_MEMBER(zero.param_persistence_threshold))
      .alias("stage3_param_persistence_threshold");
  list.acts(zero("model_persistence_threshold"), integer(0).min(0),
            "Most elements that stay gathered in all (stage 3).",
            SW_MEMBER(zero.model_persistence_threshold))
      .alias("stage3_model_persistence_threshold");
  list.acts(zero("max_live_parameters"), integer(0).min(0),
            "No unit is gathered ahead or kept beyond this many gathered elements (stage 3).",
            SW_MEMBER(zero.max_live_parameters))
      .alias("stage3_max_live_parameters");
}

void add_bucket_flags(FieldList& list) {
  Field& bucket = list.no_effect(zero("allgather_bucket_size"), integer(0).min(0),
                                 "Elements of one all-gather of updated parameters.",
                                 "units are gathered whole, not in buckets");
  FieldList::bind(bucket, SW_MEMBER(zero.allgather_bucket_size));
  list.no_effect(zero("contiguous_gradients"), boolean(true),
                 "Copy gradients into one buffer as they are produced.",
                 "the gradients of a unit always share one flat buffer");
  list.no_effect(zero("reduce_scatter"), boolean(true), "Use reduce-scatter instead of all-reduce.",
                 "the stage decides which collective is used");
  list.no_effect(zero("use_multi_rank_bucket_allreduce"), boolean(true),
                 "Reduce buckets of several ranks together.",
                 "each unit is reduced by one collective");
  list.no_effect(zero("allgather_partitions"), boolean(true),
                 "Collect updated parameters by all-gather instead of broadcasts.",
                 "updated parameters come back in one all-gather a unit");
  list.no_effect(zero("round_robin_gradients"), boolean(false),
                 "Spread copies of gradients over ranks.",
                 "every unit is cut evenly over all ranks");
  list.no_effect(zero("legacy_stage1"), boolean(false), "An older implementation of stage 1.",
                 "there is one implementation of all stages");
  list.no_effect(zero("sub_group_size"), integer(1'000'000'000).min(1),
                 "Elements that are updated together at stage 3.", "one kernel updates all shards");
  list.no_effect(zero("max_reuse_distance"), integer(1'000'000'000).min(0),
                 "Keep a parameter gathered if it is used again within this many elements.",
                 "units are released after every use; shardwise.max_reuse_distance keeps them")
      .alias("stage3_max_reuse_distance");
  list.no_effect(zero("use_all_reduce_for_fetch_params"), boolean(false),
                 "Gather parameters by all-reduce.", "a unit is gathered by one all-gather")
      .alias("stage3_use_all_reduce_for_fetch_params");
  list.no_effect(zero("allgather_sequential"), boolean(false),
                 "Gather one parameter after the other.", "a unit is gathered by one all-gather")
      .alias("stage3_allgather_sequential");
  list.no_effect(zero("module_granularity_threshold"), integer(0).min(0),
                 "Gather modules with small parts as a whole.", "units are gathered whole")
      .alias("stage3_module_granularity_threshold");
}

void add_model_flags(FieldList& list) {
  list.no_effect(zero("gather_16bit_weights_on_model_save"), boolean(false),
                 "Collect full weights when a model is saved (stage 3).",
                 "state_dict() always collects full weights")
      .alias("stage3_gather_16bit_weights_on_model_save")
      .old_name("stage3_gather_fp16_weights_on_model_save")
      .old_name("gather_fp16_weights_on_model_save")
      .quiet();
  list.no_effect(zero("memory_efficient_linear"), boolean(true),
                 "Replace linear layers by ones that do not keep gathered weights.",
                 "what autograd saves never holds a gathered weight");
  list.no_effect(zero("override_module_apply"), boolean(true),
                 "Gather parameters inside Module.apply while a model is built.",
                 "shardwise.zero.Init gathers what any function of torch touches");
  list.no_effect(zero("log_trace_cache_warnings"), boolean(false),
                 "Warn when the order of modules changes.",
                 "a change of order is always logged once");
  list.no_effect(zero("enable_sanity_checks"), boolean(false), "Extra checks of each step.",
                 "the checks of each step are always on");
  list.no_effect(zero("save_muon_momentum_buffer_in_memory"), boolean(false),
                 "Where Muon keeps its momentum.", "it lies beside the master weights, as a shard");
  list.no_effect(zero("grad_hooks"), boolean(true), "In old documentation only.",
                 "gradients are always reduced from hooks");
  list.unavailable(zero("load_from_fp32_weights"), boolean(true),
                   "Start from the fp32 weights of a checkpoint.");
  list.unavailable(zero("ignore_unused_parameters"), boolean(true),
                   "Parameters without a gradient are no error.");
  list.unavailable(zero("elastic_checkpoint"), boolean(false),
                   "Checkpoints that load on another number of ranks.");
  list.unavailable(zero("pipeline_loading_checkpoint"), boolean(false),
                   "Load checkpoints by one rank after the other.");
  list.section(zero("leaf_module"), "Modules that are gathered as a whole.");
  list.acts(zero("leaf_module.classes"), words({}).null_too(),
            "Classes of modules that are never split into units.",
            SW_MEMBER(zero.leaf_module_classes));
  list.acts(zero("leaf_module.names"), words({}).null_too(), "The same by paths of modules.",
            SW_MEMBER(zero.leaf_module_names));
  list.acts(zero("leaf_module.name_suffixes"), words({}).null_too(), "The same by ends of paths.",
            SW_MEMBER(zero.leaf_module_suffixes));
}

void add_quantized_fields(FieldList& list) {
  list.unavailable(zero("zero_hpz_partition_size"), integer(1).min(1),
                   "ZeRO++: ranks that share a second copy of the parameters.");
  list.unavailable(zero("zero_quantized_weights"), boolean(false),
                   "ZeRO++: gather weights in int8.");
  list.unavailable(zero("zero_quantized_nontrainable_weights"), boolean(false),
                   "ZeRO++: keep frozen weights in int8.");
  list.unavailable(zero("zero_quantized_gradients"), boolean(false),
                   "ZeRO++: reduce gradients in int4.");
  list.section(zero("zeropp_loco_param"), "ZeRO++: error feedback of quantised gradients.")
      .on_when_present()
      .removed();
  list.parts(zero("zeropp_loco_param"), zero("zeropp_loco_param."),
             {{"err_beta", number(0.8), "Decay of the error."},
              {"reset_T", integer(1024), "Steps between resets of the error."}});
  list.checked(zero("mics_shard_size"), integer(-1).min(-1),
               "Other name of shardwise.hybrid_shard_size; -1 or 0: all ranks.");
  list.unavailable(zero("mics_hierarchical_params_gather"), boolean(false),
                   "Gather within a node first.")
      .removed();
}

}  // namespace

void add_zero_fields(FieldList& list) {
  add_sharding_fields(list);
  add_bucket_flags(list);
  add_model_flags(list);
  add_quantized_fields(list);
}

void add_offload_fields(FieldList& list) {
  const std::string param = zero("offload_param.");
  list.section(zero("offload_param"), "Where parameter shards rest (stage 3).");
  list.unavailable(param + "device", one_of({"none", "cpu", "nvme"}, "none").null_too(),
                   "none: on the device.")
      .also_off(Value::null());
  list.parts(param + "device", param,
             {{"nvme_path", text("").or_null(), "Folder on the NVMe disk."},
              {"buffer_count", integer(5).min(0), "Buffers between disk and device."},
              {"buffer_size", integer(100'000'000).min(0), "Elements of one buffer."},
              {"max_in_cpu", integer(1'000'000'000).min(0), "Elements kept in host memory."},
              {"pin_memory", boolean(true), "Pin the host memory."}});

  const std::string optimizer = zero("offload_optimizer.");
  list.section(zero("offload_optimizer"), "Where optimizer states rest.");
  list.acts(
      optimizer + "device", one_of({"none", "cpu", "nvme"}, "none").null_too(),
      "none: on the device. cpu: masters and states in host memory, updated there. nvme is not "
      "available yet.",
      SW_MEMBER(zero.offload_optimizer));
  list.no_effect(optimizer + "pin_memory", boolean(true), "Pin the host memory.",
                 "it is pinned where the parameters are on a GPU")
      .quiet();
  const char* of_nvme = "it belongs to device nvme";
  list.no_effect(optimizer + "nvme_path", text("").or_null(), "Folder on the NVMe disk.", of_nvme)
      .quiet();
  list.no_effect(optimizer + "buffer_count", integer(4).min(0), "Buffers between disk and host.",
                 of_nvme)
      .quiet();
  list.no_effect(optimizer + "pipeline_read", boolean(false),
                 "Read the next tile during an update.", of_nvme)
      .quiet();
  list.no_effect(optimizer + "pipeline_write", boolean(false),
                 "Write the last tile during an update.", of_nvme)
      .quiet();
  list.no_effect(optimizer + "fast_init", boolean(false), "Start faster on NVMe.", of_nvme).quiet();
  list.unavailable(optimizer + "ratio", number(1.0).range(0, 1),
                   "Share of the update that runs on the CPU.");
  list.unavailable(optimizer + "super_offload", boolean(false),
                   "Update in a worker process, overlapped.");
  list.parts(
      optimizer + "super_offload", optimizer,
      {{"cpuadam_cores_perc", number(0.8).range(0, 1), "Share of the cores for that process."}});
  list.no_effect("zero_force_ds_cpu_optimizer", boolean(true),
                 "Offload insists on DeepSpeed's own CPU optimizer.",
                 "every optimizer runs in host memory")
      .quiet();
  list.checked("zero_allow_untested_optimizer", boolean(false),
               "A torch optimizer of a class of your own: its rule treats each element by itself, "
               "so that it can run on shards.");

  list.unavailable(zero("cpu_offload"), boolean(false).null_too(),
                   "Old form of offload_optimizer.device = cpu.")
      .also_off(Value::null())
      .instead("write offload_optimizer: {\"device\": \"cpu\"}");
  list.unavailable(zero("cpu_offload_param"), boolean(false).null_too(),
                   "Old form of offload_param.device = cpu.")
      .also_off(Value::null());
  list.no_effect(zero("cpu_offload_use_pin_memory"), boolean(false).null_too(),
                 "Old form of pin_memory.", "what is offloaded from a GPU is always pinned");

  const std::string zenflow = zero("zenflow");
  list.section(zenflow, "Update the most important gradients at once and the others later.")
      .on_when_present();
  list.parts(zenflow, zenflow + ".",
             {{"topk_ratio", number(0.1).range(0, 1), "Share of gradients updated at once."},
              {"select_strategy", one_of({"auto", "step", "epoch"}, "auto").auto_allowed(),
               "When the selection changes."},
              {"select_interval", any().auto_allowed(), "Steps between selections, or auto."},
              {"update_interval", any().auto_allowed(), "Steps between late updates, or auto."},
              {"overlap_step", boolean(false), "Overlap the late updates."},
              {"offload", boolean(false), "Keep the selection in host memory."},
              {"auto_ratio", number(0.99).range(0, 1), "Threshold of the automatic interval."},
              {"full_warm_up_rounds", integer(0).min(0), "Rounds that update everything."},
              {"pt_reserved_cores_perc", number(0.5).range(0, 1), "Share of cores left to torch."},
              {"steps_per_epoch", integer(0).or_null(), "Set by the engine."}});
}

}  // namespace shardwise::config
