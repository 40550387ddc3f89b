// Tensor, expert and pipeline parallelism; graph compilation; the hybrid engine.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

void add_tensor_parallel_fields(FieldList& list) {
  const std::string gate = "tensor_parallel.autotp_size";
  list.section("tensor_parallel", "Split the matrices of a model over ranks.");
  list.unavailable(gate, integer(0).min(0), "Ranks that share each matrix; 0 and 1: off.")
      .also_off(Value::of(std::int64_t{1}));
  list.section("tensor_parallel.tensor_parallel", "The group of these ranks.").alias("tp");
  list.unavailable("tensor_parallel.tensor_parallel.tp_size", integer(1).min(1),
                   "Ranks that share each matrix.");
  list.parts(gate, "tensor_parallel.tensor_parallel.",
             {{"tp_grain_size", integer(1).min(1), "Granularity of the split."},
              {"mpu", any(), "An object that knows the groups."},
              {"tp_group", any(), "The process group."}});
  list.parts(gate, "tensor_parallel.",
             {{"dtype", dtype("fp16"), "Dtype of the split model."},
              {"tp_overlap_comm", boolean(false), "Overlap the sums."},
              {"injection_policy_tuple", any(), "Names of the layers that sum."},
              {"preset_model",
               one_of({"llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"}, "")
                   .or_null(),
               "Split as this model family is split."},
              {"keep_module_on_host", boolean(false), "Leave the model in host memory."}});
  list.part(gate, "tensor_parallel.replace_with_kernel_inject", boolean(false),
            "Use inference kernels.")
      .alias("kernel_inject");
  const std::string partition = "tensor_parallel.partition_config";
  list.section(partition, "Which layers are split, and how.");
  list.parts(gate, partition + ".",
             {{"use_default_specs", boolean(true), "Start from the built-in rules."},
              {"strict_mode", boolean(false), "A layer without a rule is an error."},
              {"tp_size", integer(1).or_null().min(1), "Ranks that share each matrix."},
              {"embedding_partition_dim", integer(1).range(0, 1), "Dimension of embeddings."},
              {"lm_head_patterns", words({}).or_null(), "Names of the output layer."},
              {"layer_specs", objects(), "Rules."}});
  list.parts(gate, partition + ".layer_specs[].",
             {{"patterns", words({}).or_null(), "Names that the rule is for."},
              {"partition_type", one_of({"column", "row", "skip"}, "column"), "Split of the rule."},
              {"shape", any(), "Shape of fused matrices."},
              {"partition_dim", integer(0).or_null(), "Dimension that is split."},
              {"model_types", words({}).or_null(), "Model types that the rule is for."},
              {"gather_output", boolean(false), "Gather the output."},
              {"grad_allreduce", boolean(false), "Sum the gradients."}});
}

void add_expert_parallel_fields(FieldList& list) {
  const std::string gate = "expert_parallel.enabled";
  list.section("expert_parallel", "Spread the experts of a model over ranks.");
  list.unavailable(gate, boolean(false), "Spread the experts of a known model over ranks.");
  list.parts(gate, "expert_parallel.",
             {{"autoep_size", integer(1).min(1), "Ranks that share the experts."},
              {"expert_tensor_parallel_size", integer(1).min(1), "Ranks that share one expert."},
              {"validate_folding_routing", boolean(false), "Check the routing of folded groups."},
              {"preset_model", text("").or_null(), "Known model family."},
              {"moe_layer_pattern", text("").or_null(), "Names of the MoE layers."},
              {"expert_pattern", text("").or_null(), "Name of the experts in a layer."},
              {"router_pattern", text("").or_null(), "Name of the router in a layer."},
              {"use_grouped_mm", boolean(true), "One grouped product for all experts."},
              {"disable_triton_grouped_mm", boolean(false), "Without Triton."},
              {"route_norm", boolean(false).or_null(), "Normalise the routing weights."},
              {"route_scale", number(1.0), "Factor on the routing weights."},
              {"score_apply", text("auto").auto_allowed(), "Where scores are applied."},
              {"score_func", text("auto").auto_allowed(), "softmax, sigmoid or auto."},
              {"combine_impl", text("auto").auto_allowed(), "How outputs are combined."},
              {"top_k", any().auto_allowed(), "Experts of a token, or auto."},
              {"routed_scaling_factor", any().auto_allowed(), "Factor on routed outputs, or auto."},
              {"num_expert_groups", integer(0).or_null(), "Groups of experts."},
              {"num_limited_groups", integer(0).or_null(), "Groups that a token may use."},
              {"load_balance_coeff", any(), "Must be null."},
              {"expert_w1", text("").or_null(), "Name of the gate matrix."},
              {"expert_w2", text("").or_null(), "Name of the down matrix."},
              {"expert_w3", text("").or_null(), "Name of the up matrix."},
              {"num_experts_attr", text("").or_null(), "Attribute with the number of experts."},
              {"top_k_attr", text("").or_null(), "Attribute with the experts of a token."},
              {"has_shared_experts", boolean(false).or_null(), "Whether there are shared experts."},
              {"shared_experts_pattern", text("").or_null(), "Name of the shared experts."},
              {"shared_experts_gate_pattern", text("").or_null(), "Name of their gate."}});
}

void add_pipeline_fields(FieldList& list) {
  list.section("pipeline", "Layers spread over ranks (PipelineModule).");
  list.unavailable("pipeline.stages", any().auto_allowed(), "Stages; auto: one.")
      .also_off(Value::of("auto"))
      .also_off(Value::of(std::int64_t{1}));
  list.parts("pipeline.stages", "pipeline.",
             {{"partition", text("best"), "How layers are spread."},
              {"seed_layers", boolean(false), "Seed each layer by itself."},
              {"activation_checkpoint_interval", integer(0).min(0), "Layers of one checkpoint."},
              {"pipe_partitioned", boolean(true), "Split activations between stages."},
              {"grad_partitioned", boolean(true), "Split their gradients."},
              {"use_reentrant", boolean(true), "Form of checkpointing."}});
}

}  // namespace

void add_parallel_fields(FieldList& list) {
  add_tensor_parallel_fields(list);
  add_expert_parallel_fields(list);
  add_pipeline_fields(list);

  list.section("activation_checkpointing", "Settings of deepspeed.checkpointing.");
  const std::string prefix = "activation_checkpointing.";
  list.no_effect(prefix + "partition_activations", boolean(false),
                 "Spread kept activations over tensor-parallel ranks.",
                 "no two ranks hold the same activations")
      .quiet();
  const char* no_buffer = "kept activations need no buffer of their own";
  list.no_effect(prefix + "number_checkpoints", integer(0).or_null().min(0),
                 "Checkpoints of one pass.", no_buffer);
  list.no_effect(prefix + "contiguous_memory_optimization", boolean(false),
                 "Keep activations in one buffer.", no_buffer);
  list.in_python(prefix + "cpu_checkpointing", boolean(false),
                 "Keep the inputs of checkpointed functions in host memory.");
  list.no_effect(prefix + "synchronize_checkpoint_boundary", boolean(false),
                 "Wait for the device at each checkpoint.", "the engine never waits there");
  list.unavailable(prefix + "profile", boolean(false), "Print the time of checkpoints.")
      .instead("wall_clock_breakdown prints the time of forward and backward");

  list.section("hybrid_engine", "Generate with inference kernels between training steps.");
  list.unavailable("hybrid_engine.enabled", boolean(false), "Turn it on.");
  list.parts("hybrid_engine.enabled", "hybrid_engine.",
             {{"max_out_tokens", integer(512).min(1), "Longest output."},
              {"inference_tp_size", integer(1).min(1), "Ranks that generate together."},
              {"release_inference_cache", boolean(false), "Free the cache after generating."},
              {"pin_parameters", boolean(true), "Keep gathered parameters."},
              {"tp_gather_partition_size", integer(8).min(1), "Ranks of one gather."},
              {"enable_cuda_graph", boolean(false), "Replay a CUDA graph."}});
}

void add_compile_fields(FieldList& list) {
  list.section("compile", "DeepCompile: communication placed by a graph compiler.");
  list.unavailable("compile.deepcompile", boolean(false), "Turn it on.");
  list.parts("compile.deepcompile", "compile.",
             {{"free_activation", boolean(false), "Free activations early."},
              {"free_activation_threshold", integer(10 << 20).min(0), "Bytes that count."},
              {"offload_activation", boolean(false), "Move activations to the host."},
              {"offload_activation_pin_memory", boolean(true), "Pin that memory."},
              {"offload_opt_states", boolean(false), "Move optimizer states to the host."},
              {"offload_parameters", boolean(false), "Move parameters to the host."},
              {"double_buffer", boolean(true), "Use two buffers."},
              {"symmetric_memory", boolean(false), "Use symmetric memory."},
              {"debug_log", boolean(false), "Log the passes."},
              {"sync_before_reduce", boolean(false), "Wait before a reduce."},
              {"sync_after_reduce", boolean(false), "Wait after a reduce."},
              {"sync_before_allgather", boolean(false), "Wait before a gather."},
              {"sync_after_allgather", boolean(false), "Wait after a gather."},
              {"keep_int_input_tensors", boolean(true), "Keep integer inputs."},
              {"keep_all_input_tensors", boolean(false), "Keep all inputs."}});
  Shape passes = words({}).or_null();
  passes.choices = {"z1", "z3", "autosp", "autotp"};
  list.part("compile.deepcompile", "compile.passes", passes, "Passes to run.");
}

}  // namespace shardwise::config
