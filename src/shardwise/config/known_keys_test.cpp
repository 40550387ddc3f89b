// Every key of DeepSpeed's configuration, written down from its documentation and not from our
// field list: each must be known, have DeepSpeed's default, refuse a wrong type, and be suggested
// when it is misspelt.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/config/config.h"

namespace shardwise::config {
namespace {

// `value` is the default as JSON. "~" in front: there is no default, and the value is only a valid
// one. "!" in front: giving the section asks for a feature that this version lacks.
struct Key {
  const char* path;
  const char* value;
};

const std::vector<Key>& top_level_keys() {
  static const std::vector<Key> keys = {
      {"train_batch_size", "~8"},
      {"train_micro_batch_size_per_gpu", "~8"},
      {"gradient_accumulation_steps", "~1"},
      {"managed_gradient_accumulation", "true"},
      {"steps_per_print", "null"},
      {"optimizer.type", "null"},
      {"optimizer.legacy_fusion", "false"},
      {"scheduler.type", "null"},
      {"zero_allow_untested_optimizer", "false"},
      {"zero_force_ds_cpu_optimizer", "true"},
      {"gradient_clipping", "1.0"},
      {"communication_data_type", "null"},
      {"seq_parallel_communication_data_type", "\"fp32\""},
      {"prescale_gradients", "false"},
      {"gradient_predivide_factor", "1.0"},
      {"gradient_allreduce_op", "\"mean\""},
      {"sparse_gradients", "false"},
      {"disable_allgather", "false"},
      {"graph_harvesting", "false"},
      {"dump_state", "false"},
      {"wall_clock_breakdown", "false"},
      {"memory_breakdown", "false"},
      {"dataloader_drop_last", "false"},
      {"use_data_before_expert_parallelism", "false"},
      {"vocabulary_size", "null"},
      {"log_level", "null"},
      {"sequence_parallel_size", "~1"},
      {"data_parallel_size", "~1"},
      {"amp.enabled", "false"},
      {"amp.opt_level", "~\"O1\""},
      {"torch_autocast.enabled", "false"},
      {"torch_autocast.dtype", "null"},
      {"torch_autocast.lower_precision_safe_modules", "null"},
      {"data_types.grad_accum_dtype", "~\"fp32\""},
      {"data_types.param_dtype", "null"},
      {"data_types.buffer_dtype", "null"},
      {"timers.throughput.enabled", "true"},
      {"timers.throughput.synchronized", "true"},
      {"allgather_size", "500000000"},
      {"fp16.enabled", "false"},
      {"fp16.auto_cast", "false"},
      {"fp16.loss_scale", "0.0"},
      {"fp16.initial_scale_power", "16"},
      {"fp16.loss_scale_window", "1000"},
      {"fp16.hysteresis", "2"},
      {"fp16.consecutive_hysteresis", "false"},
      {"fp16.min_loss_scale", "1.0"},
      {"fp16.fp16_master_weights_and_grads", "false"},
      {"bf16.enabled", "false"},
      {"bf16.immediate_grad_update", "false"},
      {"bf16.check_grad_overflow", "true"},
      {"bf16.bf16_master_weights_and_grads", "false"},
      {"bf16.bf16_optimizer_states", "false"},
      {"bf16.loss_scale", "null"},
      {"bf16.initial_scale_power", "null"},
      {"bf16.loss_scale_window", "null"},
      {"bf16.hysteresis", "null"},
      {"bf16.consecutive_hysteresis", "null"},
      {"bf16.min_loss_scale", "null"},
      {"bf16.auto_cast", "null"},
      {"bfloat16.enabled", "false"},
      {"bfloat16.check_grad_overflow", "true"},
  };
  return keys;
}

const std::vector<Key>& zero_keys() {
  static const std::vector<Key> keys = {
      {"stage", "0"},
      {"contiguous_gradients", "true"},
      {"reduce_scatter", "true"},
      {"use_multi_rank_bucket_allreduce", "true"},
      {"allgather_partitions", "true"},
      {"reduce_bucket_size", "500000000"},
      {"allgather_bucket_size", "500000000"},
      {"overlap_comm", "~true"},
      {"load_from_fp32_weights", "true"},
      {"ignore_unused_parameters", "true"},
      {"memory_efficient_linear", "true"},
      {"override_module_apply", "true"},
      {"elastic_checkpoint", "false"},
      {"legacy_stage1", "false"},
      {"round_robin_gradients", "false"},
      {"pipeline_loading_checkpoint", "false"},
      {"log_trace_cache_warnings", "false"},
      {"enable_sanity_checks", "false"},
      {"save_muon_momentum_buffer_in_memory", "false"},
      {"sub_group_size", "1000000000"},
      {"prefetch_bucket_size", "50000000"},
      {"stage3_prefetch_bucket_size", "50000000"},
      {"param_persistence_threshold", "100000"},
      {"stage3_param_persistence_threshold", "100000"},
      {"model_persistence_threshold", "9223372036854775807"},
      {"stage3_model_persistence_threshold", "9223372036854775807"},
      {"max_live_parameters", "1000000000"},
      {"stage3_max_live_parameters", "1000000000"},
      {"max_reuse_distance", "1000000000"},
      {"stage3_max_reuse_distance", "1000000000"},
      {"gather_16bit_weights_on_model_save", "false"},
      {"stage3_gather_16bit_weights_on_model_save", "false"},
      {"module_granularity_threshold", "0"},
      {"stage3_module_granularity_threshold", "0"},
      {"use_all_reduce_for_fetch_params", "false"},
      {"stage3_use_all_reduce_for_fetch_params", "false"},
      {"allgather_sequential", "false"},
      {"stage3_allgather_sequential", "false"},
      {"zero_hpz_partition_size", "1"},
      {"zero_quantized_weights", "false"},
      {"zero_quantized_nontrainable_weights", "false"},
      {"zero_quantized_gradients", "false"},
      {"zeropp_loco_param.err_beta", "!0.8"},
      {"zeropp_loco_param.reset_T", "!1024"},
      {"mics_shard_size", "-1"},
      {"mics_hierarchical_params_gather", "false"},
      {"leaf_module.classes", "~[\"MixtralSparseMoeBlock\"]"},
      {"leaf_module.names", "[]"},
      {"leaf_module.name_suffixes", "[]"},
      {"cpu_offload", "false"},
      {"cpu_offload_param", "false"},
      {"cpu_offload_use_pin_memory", "false"},
      {"stage3_gather_fp16_weights_on_model_save", "false"},
      {"grad_hooks", "true"},
  };
  return keys;
}

const std::vector<Key>& offload_keys() {
  static const std::vector<Key> keys = {
      {"offload_param.device", "\"none\""},
      {"offload_param.nvme_path", "null"},
      {"offload_param.buffer_count", "5"},
      {"offload_param.buffer_size", "100000000"},
      {"offload_param.max_in_cpu", "1000000000"},
      {"offload_param.pin_memory", "true"},
      {"offload_optimizer.device", "\"none\""},
      {"offload_optimizer.nvme_path", "null"},
      {"offload_optimizer.buffer_count", "4"},
      {"offload_optimizer.pin_memory", "true"},
      {"offload_optimizer.pipeline_read", "false"},
      {"offload_optimizer.pipeline_write", "false"},
      {"offload_optimizer.fast_init", "false"},
      {"offload_optimizer.ratio", "1.0"},
      {"offload_optimizer.super_offload", "false"},
      {"offload_optimizer.cpuadam_cores_perc", "0.8"},
      {"zenflow.topk_ratio", "!0.1"},
      {"zenflow.select_strategy", "!\"auto\""},
      {"zenflow.select_interval", "~!\"auto\""},
      {"zenflow.update_interval", "~!\"auto\""},
      {"zenflow.overlap_step", "!false"},
      {"zenflow.offload", "!false"},
      {"zenflow.auto_ratio", "!0.99"},
      {"zenflow.full_warm_up_rounds", "!0"},
      {"zenflow.pt_reserved_cores_perc", "!0.5"},
      {"zenflow.steps_per_epoch", "~!10"},
  };
  return keys;
}

const std::vector<Key>& optimizer_keys() {
  static const std::vector<Key> keys = {
      {"lr", "0.001"},
      {"bias_correction", "true"},
      {"betas", "[0.9, 0.999]"},
      {"eps", "1e-08"},
      {"weight_decay", "0.0"},
      {"amsgrad", "false"},
      {"set_grad_none", "~true"},
      {"torch_adam", "false"},
      {"adam_w_mode", "true"},
      {"fp32_optimizer_states", "true"},
      {"eps_inside_sqrt", "~false"},
      {"max_coeff", "10.0"},
      {"min_coeff", "0.01"},
      {"momentum", "~0.9"},
      {"muon_lr", "~0.01"},
      {"adam_lr", "~0.01"},
      {"ns_method", "\"gram\""},
      {"freeze_step", "100000"},
      {"cuda_aware", "~false"},
      {"comm_backend_name", "\"nccl\""},
      {"var_freeze_step", "100000"},
      {"var_update_scaler", "16"},
      {"local_step_scaler", "32678"},
      {"local_step_clipper", "16"},
      {"coeff_beta", "0.9"},
      {"factor_max", "4.0"},
      {"factor_min", "0.5"},
      {"factor_threshold", "0.1"},
  };
  return keys;
}

const std::vector<Key>& scheduler_keys() {
  static const std::vector<Key> keys = {
      {"lr_range_test_min_lr", "0.001"},
      {"lr_range_test_step_size", "2000"},
      {"lr_range_test_step_rate", "1.0"},
      {"lr_range_test_staircase", "false"},
      {"cycle_min_lr", "~0.1"},
      {"cycle_max_lr", "~0.1"},
      {"decay_lr_rate", "0.0"},
      {"cycle_first_step_size", "2000"},
      {"cycle_second_step_size", "~2000"},
      {"cycle_first_stair_count", "~0"},
      {"cycle_second_stair_count", "~0"},
      {"decay_step_size", "0"},
      {"cycle_momentum", "true"},
      {"cycle_min_mom", "0.8"},
      {"cycle_max_mom", "0.9"},
      {"decay_mom_rate", "0.0"},
      {"warmup_min_lr", "0.0"},
      {"warmup_max_lr", "~0.001"},
      {"warmup_num_steps", "1000"},
      {"warmup_type", "\"log\""},
      {"total_num_steps", "~100"},
      {"warmup_min_ratio", "0.0"},
      {"cos_min_ratio", "1e-04"},
      {"last_batch_iteration", "-1"},
  };
  return keys;
}

const std::vector<Key>& service_keys() {
  static const std::vector<Key> keys = {
      {"activation_checkpointing.partition_activations", "false"},
      {"activation_checkpointing.number_checkpoints", "null"},
      {"activation_checkpointing.contiguous_memory_optimization", "false"},
      {"activation_checkpointing.cpu_checkpointing", "false"},
      {"activation_checkpointing.synchronize_checkpoint_boundary", "false"},
      {"activation_checkpointing.profile", "false"},
      {"aio.block_size", "1048576"},
      {"aio.queue_depth", "8"},
      {"aio.intra_op_parallelism", "1"},
      {"aio.single_submit", "false"},
      {"aio.overlap_events", "true"},
      {"aio.use_gds", "false"},
      {"aio.thread_count", "~1"},
      {"checkpoint.tag_validation", "\"WARN\""},
      {"checkpoint.load_universal", "false"},
      {"checkpoint.use_node_local_storage", "false"},
      {"checkpoint.parallel_write.pipeline_stage", "false"},
      {"checkpoint.checkpoint_serialization", "true"},
      {"checkpoint.writer", "~null"},
      {"checkpoint.writer.type", "!\"FAST\""},
      {"checkpoint.writer.io_buffer_size", "!67108864"},
      {"checkpoint.writer.io_buffer_double", "!true"},
      {"checkpoint.writer.io_multiplier", "!1"},
      {"checkpoint.writer.show_statistics", "!false"},
      {"checkpoint.writer.data_parallel", "!null"},
      {"checkpoint.writer.decoupled", "!false"},
      {"comms_logger.enabled", "false"},
      {"comms_logger.verbose", "false"},
      {"comms_logger.prof_all", "true"},
      {"comms_logger.debug", "false"},
      {"comms_logger.prof_ops", "[]"},
      {"tensorboard.enabled", "false"},
      {"tensorboard.output_path", "\"\""},
      {"tensorboard.job_name", "\"DeepSpeedJobName\""},
      {"csv_monitor.enabled", "false"},
      {"csv_monitor.output_path", "\"\""},
      {"csv_monitor.job_name", "\"DeepSpeedJobName\""},
      {"wandb.enabled", "false"},
      {"wandb.group", "null"},
      {"wandb.team", "null"},
      {"wandb.project", "\"deepspeed\""},
      {"comet.enabled", "false"},
      {"comet.samples_log_interval", "100"},
      {"comet.project", "null"},
      {"comet.workspace", "null"},
      {"comet.api_key", "null"},
      {"comet.experiment_name", "null"},
      {"comet.experiment_key", "null"},
      {"comet.online", "null"},
      {"comet.mode", "null"},
      {"flops_profiler.enabled", "false"},
      {"flops_profiler.recompute_fwd_factor", "0.0"},
      {"flops_profiler.profile_step", "1"},
      {"flops_profiler.module_depth", "-1"},
      {"flops_profiler.top_modules", "1"},
      {"flops_profiler.detailed", "true"},
      {"flops_profiler.output_file", "null"},
      {"nebula.enabled", "false"},
      {"nebula.nebula_load_path", "null"},
      {"nebula.enable_nebula_load", "true"},
      {"nebula.persistent_storage_path", "null"},
      {"nebula.persistent_time_interval", "100"},
      {"nebula.num_of_version_in_retention", "2"},
      {"datastates_ckpt.host_cache_size", "~!4"},
      {"msamp", "~{\"enabled\": true, \"opt_level\": \"O2\"}"},
  };
  return keys;
}

const std::vector<Key>& parallel_keys() {
  static const std::vector<Key> keys = {
      {"pipeline.stages", "~\"auto\""},
      {"pipeline.partition", "\"best\""},
      {"pipeline.seed_layers", "false"},
      {"pipeline.activation_checkpoint_interval", "0"},
      {"pipeline.pipe_partitioned", "true"},
      {"pipeline.grad_partitioned", "true"},
      {"pipeline.use_reentrant", "~true"},
      {"tensor_parallel.autotp_size", "0"},
      {"tensor_parallel.dtype", "\"fp16\""},
      {"tensor_parallel.tp_overlap_comm", "false"},
      {"tensor_parallel.tensor_parallel.tp_size", "1"},
      {"tensor_parallel.tensor_parallel.tp_grain_size", "1"},
      {"tensor_parallel.tensor_parallel.mpu", "~null"},
      {"tensor_parallel.tensor_parallel.tp_group", "~null"},
      {"tensor_parallel.tp.tp_size", "1"},
      {"tensor_parallel.tp.tp_grain_size", "1"},
      {"tensor_parallel.injection_policy_tuple", "~null"},
      {"tensor_parallel.partition_config.use_default_specs", "true"},
      {"tensor_parallel.partition_config.strict_mode", "false"},
      {"tensor_parallel.partition_config.tp_size", "~1"},
      {"tensor_parallel.partition_config.embedding_partition_dim", "1"},
      {"tensor_parallel.partition_config.lm_head_patterns", "~[\"lm_head\"]"},
      {"tensor_parallel.partition_config.layer_specs[].patterns", "~[\".*\"]"},
      {"tensor_parallel.partition_config.layer_specs[].partition_type", "~\"row\""},
      {"tensor_parallel.partition_config.layer_specs[].shape", "~[1, 2]"},
      {"tensor_parallel.partition_config.layer_specs[].partition_dim", "~0"},
      {"tensor_parallel.partition_config.layer_specs[].model_types", "~[\"llama\"]"},
      {"tensor_parallel.partition_config.layer_specs[].gather_output", "~false"},
      {"tensor_parallel.partition_config.layer_specs[].grad_allreduce", "~false"},
      {"tensor_parallel.preset_model", "~\"llama\""},
      {"tensor_parallel.keep_module_on_host", "false"},
      {"tensor_parallel.replace_with_kernel_inject", "false"},
      {"tensor_parallel.kernel_inject", "false"},
      {"expert_parallel.enabled", "false"},
      {"expert_parallel.autoep_size", "1"},
      {"expert_parallel.expert_tensor_parallel_size", "1"},
      {"expert_parallel.validate_folding_routing", "false"},
      {"expert_parallel.preset_model", "~\"mixtral\""},
      {"expert_parallel.moe_layer_pattern", "~\"x\""},
      {"expert_parallel.expert_pattern", "~\"x\""},
      {"expert_parallel.router_pattern", "~\"x\""},
      {"expert_parallel.use_grouped_mm", "true"},
      {"expert_parallel.disable_triton_grouped_mm", "false"},
      {"expert_parallel.route_norm", "null"},
      {"expert_parallel.route_scale", "1.0"},
      {"expert_parallel.score_apply", "\"auto\""},
      {"expert_parallel.score_func", "\"auto\""},
      {"expert_parallel.combine_impl", "\"auto\""},
      {"expert_parallel.top_k", "~\"auto\""},
      {"expert_parallel.routed_scaling_factor", "~\"auto\""},
      {"expert_parallel.num_expert_groups", "~2"},
      {"expert_parallel.num_limited_groups", "~2"},
      {"expert_parallel.load_balance_coeff", "null"},
      {"expert_parallel.expert_w1", "~\"w1\""},
      {"expert_parallel.expert_w2", "~\"w2\""},
      {"expert_parallel.expert_w3", "~\"w3\""},
      {"expert_parallel.num_experts_attr", "~\"n\""},
      {"expert_parallel.top_k_attr", "~\"k\""},
      {"expert_parallel.has_shared_experts", "~false"},
      {"expert_parallel.shared_experts_pattern", "~\"x\""},
      {"expert_parallel.shared_experts_gate_pattern", "~\"x\""},
  };
  return keys;
}

const std::vector<Key>& compile_keys() {
  static const std::vector<Key> keys = {
      {"compile.deepcompile", "false"},
      {"compile.free_activation", "false"},
      {"compile.free_activation_threshold", "10485760"},
      {"compile.offload_activation", "false"},
      {"compile.offload_activation_pin_memory", "true"},
      {"compile.offload_opt_states", "false"},
      {"compile.offload_parameters", "false"},
      {"compile.double_buffer", "true"},
      {"compile.symmetric_memory", "false"},
      {"compile.debug_log", "false"},
      {"compile.sync_before_reduce", "false"},
      {"compile.sync_after_reduce", "false"},
      {"compile.sync_before_allgather", "false"},
      {"compile.sync_after_allgather", "false"},
      {"compile.keep_int_input_tensors", "true"},
      {"compile.keep_all_input_tensors", "false"},
      {"compile.passes", "null"},
      {"hybrid_engine.enabled", "false"},
      {"hybrid_engine.max_out_tokens", "512"},
      {"hybrid_engine.inference_tp_size", "1"},
      {"hybrid_engine.release_inference_cache", "false"},
      {"hybrid_engine.pin_parameters", "true"},
      {"hybrid_engine.tp_gather_partition_size", "8"},
      {"hybrid_engine.enable_cuda_graph", "false"},
  };
  return keys;
}

const std::vector<Key>& tuning_keys() {
  static const std::vector<Key> keys = {
      {"elasticity.enabled", "false"},
      {"elasticity.max_train_batch_size", "2000"},
      {"elasticity.micro_batch_sizes", "[2, 4, 6]"},
      {"elasticity.min_gpus", "1"},
      {"elasticity.max_gpus", "10000"},
      {"elasticity.num_gpus_per_node", "1"},
      {"elasticity.model_parallel_size", "1"},
      {"elasticity.min_time", "0"},
      {"elasticity.prefer_larger_batch", "true"},
      {"elasticity.ignore_non_elastic_batch_info", "false"},
      {"elasticity.version", "0.2"},
      {"autotuning.enabled", "false"},
      {"autotuning.fast", "true"},
      {"autotuning.results_dir", "~\"r\""},
      {"autotuning.exps_dir", "~\"e\""},
      {"autotuning.overwrite", "true"},
      {"autotuning.start_profile_step", "3"},
      {"autotuning.end_profile_step", "5"},
      {"autotuning.metric", "\"throughput\""},
      {"autotuning.metric_path", "~\"m\""},
      {"autotuning.tuner_type", "\"gridsearch\""},
      {"autotuning.tuner_early_stopping", "5"},
      {"autotuning.tuner_num_trials", "50"},
      {"autotuning.arg_mappings", "~{\"train_batch_size\": \"--bs\"}"},
      {"autotuning.model_info.profile", "~true"},
      {"autotuning.model_info.num_params", "~1"},
      {"autotuning.model_info.hidden_size", "~1"},
      {"autotuning.model_info.num_layers", "~1"},
      {"autotuning.model_info_path", "~\"p\""},
      {"autotuning.mp_size", "1"},
      {"autotuning.max_train_batch_size", "null"},
      {"autotuning.min_train_batch_size", "1"},
      {"autotuning.max_train_micro_batch_size_per_gpu", "1024"},
      {"autotuning.min_train_micro_batch_size_per_gpu", "1"},
      {"autotuning.num_tuning_micro_batch_sizes", "3"},
      {"progressive_layer_drop.enabled", "false"},
      {"progressive_layer_drop.theta", "1.0"},
      {"progressive_layer_drop.gamma", "0.001"},
      {"curriculum_learning.enabled", "false"},
      {"curriculum_learning.curriculum_type", "\"seqlen\""},
      {"curriculum_learning.min_difficulty", "~8"},
      {"curriculum_learning.max_difficulty", "~8"},
      {"curriculum_learning.schedule_type", "~\"fixed_root\""},
      {"curriculum_learning.schedule_config.total_curriculum_step", "~8"},
      {"curriculum_learning.schedule_config.difficulty_step", "~8"},
      {"curriculum_learning.schedule_config.root_degree", "~2"},
      {"curriculum_learning.schedule_config.difficulty", "~[1, 2]"},
      {"curriculum_learning.schedule_config.max_step", "~[1, 2]"},
  };
  return keys;
}

const std::vector<Key>& data_keys() {
  static const std::vector<Key> keys = {
      {"enabled", "false"},
      {"seed", "1234"},
      {"data_sampling.enabled", "false"},
      {"data_sampling.num_epochs", "1000"},
      {"data_sampling.num_workers", "0"},
      {"data_sampling.pin_memory", "false"},
      {"data_sampling.curriculum_learning.enabled", "~false"},
      {"data_sampling.curriculum_learning.data_cluster_path", "~\"p\""},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.index_to_sample_path",
       "~\"p\""},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.index_to_metric_path",
       "~\"p\""},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.difficulty_type", "~\"value\""},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.clustering_type", "~\"c\""},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.min_difficulty", "~1"},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.max_difficulty", "~1"},
      {"data_sampling.curriculum_learning.curriculum_metrics.seqlen.schedule_type", "~\"custom\""},
      {"data_sampling.dynamic_batching.enabled", "false"},
      {"data_sampling.dynamic_batching.metrics_path", "~\"p\""},
      {"data_sampling.dynamic_batching.lr_scaling_method", "\"linear\""},
      {"data_sampling.dynamic_batching.min_batch_size", "1"},
      {"data_sampling.dynamic_batching.max_batch_size", "null"},
      {"data_sampling.dynamic_batching.sequence_picking_order", "\"dataloader\""},
      {"data_sampling.dynamic_batching.max_tokens", "~1024"},
      {"data_sampling.dynamic_batching.verbose", "false"},
      {"data_routing.enabled", "false"},
      {"data_routing.random_ltd.enabled", "~false"},
      {"data_routing.random_ltd.total_layer_num", "~2"},
      {"data_routing.random_ltd.random_ltd_layer_num", "~2"},
      {"data_routing.random_ltd.random_ltd_layer_id", "~[1, 2]"},
      {"data_routing.random_ltd.model_mask_name", "~\"m\""},
      {"data_routing.random_ltd.model_type", "~\"decoder\""},
      {"data_routing.random_ltd.hidden_state_order", "~\"batch_seq_dim\""},
      {"data_routing.random_ltd.random_ltd_schedule.min_value", "~1"},
      {"data_routing.random_ltd.random_ltd_schedule.max_value", "~1"},
      {"data_routing.random_ltd.random_ltd_schedule.schedule_type", "~\"fixed_linear\""},
      {"data_routing.random_ltd.random_ltd_schedule.schedule_config.require_steps", "~1"},
      {"data_routing.random_ltd.random_ltd_schedule.schedule_config.seq_per_step", "~1"},
      {"data_routing.random_ltd.layer_token_lr_schedule.enabled", "false"},
      {"data_routing.random_ltd.layer_token_lr_schedule.total_layer_tokens", "~1"},
  };
  return keys;
}

const std::vector<Key>& compression_keys() {
  static const std::vector<Key> keys = {
      {"weight_quantization.shared_parameters.enabled", "false"},
      {"weight_quantization.shared_parameters.schedule_offset", "0"},
      {"weight_quantization.shared_parameters.quantizer_kernel", "false"},
      {"weight_quantization.shared_parameters.quantize_groups", "1"},
      {"weight_quantization.shared_parameters.quantize_verbose", "false"},
      {"weight_quantization.shared_parameters.quantization_type", "\"symmetric\""},
      {"weight_quantization.shared_parameters.rounding", "\"nearest\""},
      {"weight_quantization.shared_parameters.quantize_weight_in_forward", "false"},
      {"weight_quantization.shared_parameters.fp16_mixed_quantize.enabled", "false"},
      {"weight_quantization.shared_parameters.fp16_mixed_quantize.quantize_change_ratio", "0.001"},
      {"weight_quantization.different_groups.wq1.params.start_bits", "~8"},
      {"weight_quantization.different_groups.wq1.params.target_bits", "~4"},
      {"weight_quantization.different_groups.wq1.params.quantization_period", "~1"},
      {"weight_quantization.different_groups.wq1.modules", "~[\"*\"]"},
      {"weight_quantization.different_groups.wq1.related_modules", "~null"},
      {"activation_quantization.shared_parameters.enabled", "false"},
      {"activation_quantization.shared_parameters.schedule_offset", "1000"},
      {"activation_quantization.shared_parameters.quantization_type", "\"symmetric\""},
      {"activation_quantization.shared_parameters.range_calibration", "\"dynamic\""},
      {"activation_quantization.different_groups.aq1.params.bits", "~8"},
      {"sparse_pruning.shared_parameters.enabled", "false"},
      {"sparse_pruning.shared_parameters.schedule_offset", "1000"},
      {"sparse_pruning.shared_parameters.method", "\"l1\""},
      {"sparse_pruning.shared_parameters.block_pattern", "\"4x1\""},
      {"sparse_pruning.shared_parameters.dense_ratio", "0.1"},
      {"sparse_pruning.shared_parameters.excluded_modules", "~[\"c\"]"},
      {"sparse_pruning.shared_parameters.schedule_offset_end", "~10"},
      {"sparse_pruning.shared_parameters.schedule_offset_stride", "~1"},
      {"sparse_pruning.different_groups.sp1.params.dense_ratio", "~0.5"},
      {"sparse_pruning.different_groups.sp1.modules", "~[\"a\"]"},
      {"row_pruning.shared_parameters.enabled", "false"},
      {"row_pruning.shared_parameters.schedule_offset", "1000"},
      {"row_pruning.shared_parameters.method", "~\"l1\""},
      {"row_pruning.different_groups.rp1.params.dense_ratio", "~0.5"},
      {"row_pruning.different_groups.rp1.related_modules", "~[[\"a\"]]"},
      {"head_pruning.shared_parameters.enabled", "false"},
      {"head_pruning.shared_parameters.schedule_offset", "1000"},
      {"head_pruning.shared_parameters.method", "\"topk\""},
      {"head_pruning.shared_parameters.num_heads", "~12"},
      {"head_pruning.different_groups.hp1.params.dense_ratio", "~0.5"},
      {"channel_pruning.shared_parameters.enabled", "false"},
      {"channel_pruning.shared_parameters.schedule_offset", "1000"},
      {"channel_pruning.shared_parameters.method", "~\"l1\""},
      {"channel_pruning.different_groups.cp1.params.dense_ratio", "~0.5"},
      {"layer_reduction.enabled", "false"},
      {"layer_reduction.keep_number_layer", "~4"},
      {"layer_reduction.module_name_prefix", "~\"bert\""},
      {"layer_reduction.teacher_layer", "~[1, 2]"},
      {"layer_reduction.other_module_name", "~[\"a\"]"},
  };
  return keys;
}

const std::vector<Key>& quantization_keys() {
  static const std::vector<Key> keys = {
      {"quantize_training.eigenvalue.enabled", "false"},
      {"quantize_training.eigenvalue.verbose", "false"},
      {"quantize_training.eigenvalue.max_iter", "100"},
      {"quantize_training.eigenvalue.tol", "0.01"},
      {"quantize_training.eigenvalue.stability", "1e-06"},
      {"quantize_training.eigenvalue.gas_boundary_resolution", "1"},
      {"quantize_training.eigenvalue.layer_name", "\"bert.encoder.layer\""},
      {"quantize_training.eigenvalue.layer_num", "0"},
      {"eigenvalue.enabled", "false"},
      {"weight_quantization.enabled", "!true"},
      {"weight_quantization.num_bits", "!8"},
      {"weight_quantization.q_type", "!\"symmetric\""},
      {"weight_quantization.q_groups", "!1"},
      {"weight_quantization.quantized_initialization.num_bits", "~!8"},
      {"weight_quantization.quantized_initialization.group_size", "~!64"},
      {"weight_quantization.quantized_initialization.group_dim", "~!0"},
      {"weight_quantization.quantized_initialization.symmetric", "~!true"},
      {"weight_quantization.post_init_quant.fc.num_bits", "~!8"},
      {"sparse_attention.mode", "!\"fixed\""},
      {"sparse_attention.block", "!16"},
      {"sparse_attention.different_layout_per_head", "!false"},
      {"sparse_attention.num_local_blocks", "!4"},
      {"sparse_attention.num_global_blocks", "!1"},
      {"sparse_attention.attention", "!\"bidirectional\""},
      {"sparse_attention.horizontal_global_attention", "!false"},
      {"sparse_attention.num_different_global_patterns", "!1"},
      {"sparse_attention.num_random_blocks", "!0"},
      {"sparse_attention.local_window_blocks", "![4]"},
      {"sparse_attention.global_block_indices", "![0]"},
      {"sparse_attention.global_block_end_indices", "!null"},
      {"sparse_attention.num_sliding_window_blocks", "!3"},
  };
  return keys;
}

struct FullKey {
  std::string path;
  std::string value;
  bool has_default = true;
  bool asks_for_feature = false;
};

void append(std::vector<FullKey>& out, const std::string& prefix, const std::vector<Key>& keys) {
  for (const Key& key : keys) {
    FullKey full{prefix + key.path, key.value};
    if (full.value[0] == '~') {
      full.has_default = false;
      full.value.erase(0, 1);
    }
    if (full.value[0] == '!') {
      full.asks_for_feature = true;
      full.value.erase(0, 1);
    }
    out.push_back(full);
  }
}

std::vector<FullKey> all_keys() {
  std::vector<FullKey> keys;
  append(keys, "", top_level_keys());
  append(keys, "zero_optimization.", zero_keys());
  append(keys, "zero_optimization.", offload_keys());
  append(keys, "optimizer.params.", optimizer_keys());
  append(keys, "scheduler.params.", scheduler_keys());
  append(keys, "", service_keys());
  append(keys, "", parallel_keys());
  append(keys, "", compile_keys());
  append(keys, "", tuning_keys());
  append(keys, "data_efficiency.", data_keys());
  append(keys, "compression_training.", compression_keys());
  append(keys, "", quantization_keys());
  return keys;
}

// {"a": {"b": value}} for "a.b"; "a[].b" makes a list of one object.
std::string nest(const std::string& path, const std::string& value) {
  const std::size_t dot = path.find('.');
  std::string name = path.substr(0, dot);
  std::string inner = dot == std::string::npos ? value : nest(path.substr(dot + 1), value);
  if (name.size() > 2 && name.ends_with("[]")) {
    name.resize(name.size() - 2);
    inner = "[" + inner + "]";
  }
  return "{\"" + name + "\": " + inner + "}";
}

// A document with this one key and, unless it is a batch key itself, a batch size.
std::string document(const std::string& path, const std::string& value) {
  std::string text = nest(path, value);
  if (path != "train_batch_size" && path != "train_micro_batch_size_per_gpu") {
    text.insert(1, "\"train_batch_size\": 8, ");
  }
  if (path.rfind("optimizer.params.", 0) == 0) {
    text.replace(text.find("\"params\""), 0, "\"type\": \"Adam\", ");
  }
  return text;
}

// "" when the document is right, else the error.
std::string problem_of(const std::string& text) {
  try {
    load_text(text, {});
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(KnownKeys, ListIsAsLongAsTheDocumentation) { EXPECT_GE(all_keys().size(), 400U); }

TEST(KnownKeys, EachIsReadWithAValidValue) {
  for (const FullKey& key : all_keys()) {
    const std::string problem = problem_of(document(key.path, key.value));
    const bool only_adam = contains(problem, "is not a setting of Adam");
    if (key.asks_for_feature) {
      EXPECT_TRUE(contains(problem, "is known, not available")) << key.path << ": " << problem;
      EXPECT_FALSE(contains(problem, "problems:")) << key.path << ": " << problem;
    } else {
      EXPECT_TRUE(problem.empty() || only_adam) << key.path << ": " << problem;
    }
  }
}

TEST(KnownKeys, EachHasTheDocumentedDefault) {
  const Resolved resolved = load_text(R"({"train_batch_size": 8})", {});
  for (const FullKey& key : all_keys()) {
    if (key.has_default) {
      EXPECT_EQ(resolved.value_json(key.path), key.value) << key.path;
      EXPECT_EQ(resolved.origin(key.path), "default") << key.path;
    }
  }
}

// Keys that take anything, or whose names are free.
bool is_free(const FullKey& key) {
  return key.path == "scheduler.params.lr_range_test_min_lr" ||  // a number or a list of them
         key.path == "scheduler.params.warmup_min_lr" ||
         contains(key.path, "layer_token_lr_schedule.") || contains(key.path, "post_init_quant") ||
         contains(key.path, "amp.");
}

TEST(KnownKeys, EachRefusesAWrongType) {
  int refused = 0;
  for (const FullKey& key : all_keys()) {
    const bool bool_or_number =
        key.value[0] != '"' && key.value[0] != '[' && key.value[0] != '{' && key.value != "null";
    const std::string wrong = bool_or_number ? "\"text\"" : "12.5";
    const std::string problem = problem_of(document(key.path, wrong));
    refused += contains(problem, "allowed: ") ? 1 : 0;
    if (key.has_default && key.value != "null" && (!is_free(key) || key.path == "amp.enabled")) {
      EXPECT_TRUE(contains(problem, "allowed: ")) << key.path << ": " << problem;
    }
  }
  EXPECT_GE(refused, 330);
}

TEST(KnownKeys, EachIsSuggestedWhenMisspelt) {
  for (const FullKey& key : all_keys()) {
    const std::size_t dot = key.path.rfind('.');
    const std::string section = dot == std::string::npos ? "" : key.path.substr(0, dot + 1);
    std::string name = key.path.substr(section.size());
    if (is_free(key) || section == "scheduler.params.") {
      continue;
    }
    const std::string misspelt = name.substr(0, name.size() / 2) + name.substr(name.size() / 2 + 1);
    const std::string problem = problem_of(document(section + misspelt, key.value));
    EXPECT_TRUE(contains(problem, "unknown key; ")) << key.path << ": " << problem;
    EXPECT_TRUE(contains(problem, name)) << key.path << ": " << problem;
  }
}

TEST(KnownKeys, AllTogetherAreOneValidDocument) {
  // What does not ask for a feature can stand in one document; aliases only once.
  const std::string text = R"({
    "train_batch_size": 8, "fp16": {"enabled": false, "auto_cast": false},
    "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_param": {"device": "none",
    "nvme_path": null}, "offload_optimizer": {"device": "none", "nvme_path": null},
    "stage3_gather_16bit_weights_on_model_save": true}, "steps_per_print": Infinity,
    "gradient_clipping": 0.5, "zero_allow_untested_optimizer": true,
    "msamp": {"enabled": true, "opt_level": "O1"},
    "zero_optimization.reduce_bucket_size": 1024,
    "zero_optimization.stage3_prefetch_bucket_size": 921.6})";
  const Resolved resolved = load_text(text, {});
  EXPECT_EQ(resolved.config().zero.stage, 3);
  EXPECT_EQ(resolved.config().zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(resolved.config().steps_per_print, 0);
  ASSERT_EQ(resolved.notes().size(), 2U);
  EXPECT_TRUE(contains(resolved.notes()[0], "zero_optimization.reduce_bucket_size"));
}

}  // namespace
}  // namespace shardwise::config
