// Compression while training, quantised weights, and block-sparse attention.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

const std::vector<FieldList::Part>& group_parts() {
  static const std::vector<FieldList::Part> parts = {
      {"modules", words({"*"}), "Modules of the group."},
      {"related_modules", any(), "Modules that follow them."}};
  return parts;
}

// One technique of compression_training: a switch, its settings, and groups of modules.
void add_technique(FieldList& list, const std::string& name, const char* doc,
                   std::int64_t schedule_offset, const std::vector<FieldList::Part>& shared,
                   const std::vector<FieldList::Part>& params) {
  const std::string prefix = "compression_training." + name;
  const std::string gate = prefix + ".shared_parameters.enabled";
  list.section(prefix, doc);
  list.section(prefix + ".shared_parameters", "Settings of all groups.");
  list.unavailable(gate, boolean(false), "Turn it on.").removed();
  list.part(gate, prefix + ".shared_parameters.schedule_offset", integer(schedule_offset).min(0),
            "Step at which it starts.");
  list.parts(gate, prefix + ".shared_parameters.", shared);
  list.part(gate, prefix + ".different_groups", map(), "Groups of modules by name.");
  list.section(prefix + ".different_groups.*.params", "Settings of one group.");
  list.parts(gate, prefix + ".different_groups.*.params.", params);
  list.parts(gate, prefix + ".different_groups.*.", group_parts());
}

void add_quantization(FieldList& list) {
  const std::string weights = "compression_training.weight_quantization.shared_parameters";
  add_technique(
      list, "weight_quantization", "Quantise weights.", 0,
      {{"quantizer_kernel", boolean(false), "Use a kernel."},
       {"quantize_groups", integer(1).min(1), "Groups of a matrix."},
       {"quantize_verbose", boolean(false), "Print the progress."},
       {"quantization_type", one_of({"symmetric", "asymmetric"}, "symmetric"), "Its form."},
       {"rounding", one_of({"nearest", "stochastic"}, "nearest"), "Rounding."},
       {"quantize_weight_in_forward", boolean(false), "Quantise in forward."}},
      {{"start_bits", integer(0).or_null().min(1), "First width."},
       {"target_bits", integer(0).or_null().min(1), "Last width."},
       {"quantization_period", integer(1).min(1), "Steps between widths."}});
  const std::string gate = weights + ".enabled";
  list.section(weights + ".fp16_mixed_quantize", "Mix fp16 and quantised weights.");
  list.parts(gate, weights + ".fp16_mixed_quantize.",
             {{"enabled", boolean(false), "Turn it on."},
              {"quantize_change_ratio", number(0.001), "Change of the mix in a step."}});
  add_technique(
      list, "activation_quantization", "Quantise activations.", 1000,
      {{"quantization_type", one_of({"symmetric", "asymmetric"}, "symmetric"), "Its form."},
       {"range_calibration", one_of({"dynamic", "static"}, "dynamic"), "How ranges are found."}},
      {{"bits", integer(0).or_null().min(1), "Width."}});
}

void add_pruning(FieldList& list) {
  const FieldList::Part ratio = {"dense_ratio", number(0.1).or_null().range(0, 1), "Share kept."};
  add_technique(list, "sparse_pruning", "Remove single weights.", 1000,
                {{"method", one_of({"l1", "topk", "snip_momentum"}, "l1"), "Which weights."},
                 {"block_pattern", text("4x1"), "Shape of a block."},
                 {"dense_ratio", number(0.1).range(0, 1), "Share kept."},
                 {"excluded_modules", any(), "Modules left alone."},
                 {"schedule_offset_end", integer(0).or_null(), "Step at which it ends."},
                 {"schedule_offset_stride", integer(0).or_null(), "Steps between changes."}},
                {ratio});
  const Shape row_method = one_of({"l1", "topk"}, "l1");
  add_technique(list, "row_pruning", "Remove rows.", 1000, {{"method", row_method, "Which rows."}},
                {ratio});
  add_technique(list, "head_pruning", "Remove attention heads.", 1000,
                {{"method", one_of({"topk"}, "topk"), "Which heads."},
                 {"num_heads", integer(0).or_null().min(1), "Heads of a layer."}},
                {ratio});
  add_technique(list, "channel_pruning", "Remove channels.", 1000,
                {{"method", row_method, "Which channels."}}, {ratio});
}

void add_eigenvalue(FieldList& list, const std::string& prefix) {
  list.section(prefix, "Eigenvalues of blocks, for quantisation.").removed();
  list.unavailable(prefix + ".enabled", boolean(false), "Turn it on.").removed();
  list.parts(prefix + ".enabled", prefix + ".",
             {{"verbose", boolean(false), "Print them."},
              {"max_iter", integer(100).min(1), "Most iterations."},
              {"tol", number(1e-2).min(0), "Tolerance."},
              {"stability", number(1e-6).min(0), "Added to the norm."},
              {"gas_boundary_resolution", integer(1).min(1), "Steps between them."},
              {"layer_name", text("bert.encoder.layer"), "Where the blocks are."},
              {"layer_num", integer(0).min(0), "Blocks."}});
}

void add_sparse_attention(FieldList& list) {
  list.section("sparse_attention", "Block-sparse attention.").on_when_present().removed();
  list.parts(
      "sparse_attention", "sparse_attention.",
      {{"mode", one_of({"dense", "fixed", "variable", "bigbird", "bslongformer"}, "fixed"),
        "Pattern."},
       {"block", integer(16).min(1), "Size of a block."},
       {"different_layout_per_head", boolean(false), "A pattern for each head."},
       {"num_local_blocks", integer(4).min(0), "Blocks around a token."},
       {"num_global_blocks", integer(1).min(0), "Blocks that all tokens see."},
       {"attention", one_of({"unidirectional", "bidirectional"}, "bidirectional"), "Direction."},
       {"horizontal_global_attention", boolean(false), "Global blocks see all."},
       {"num_different_global_patterns", integer(1).min(1), "Global patterns."},
       {"num_random_blocks", integer(0).min(0), "Random blocks."},
       {"local_window_blocks", integers({4}), "Sizes of local windows."},
       {"global_block_indices", integers({0}), "Global blocks."},
       {"global_block_end_indices", integers({}).or_null(), "Ends of global ranges."},
       {"num_sliding_window_blocks", integer(3).min(0), "Blocks of the window."}});
}

}  // namespace

void add_compression_fields(FieldList& list) {
  list.section("compression_training", "Quantise and prune while training.").removed();
  add_quantization(list);
  add_pruning(list);
  const std::string reduction = "compression_training.layer_reduction";
  list.section(reduction, "Train a model with fewer layers.");
  list.unavailable(reduction + ".enabled", boolean(false), "Turn it on.").removed();
  list.parts(reduction + ".enabled", reduction + ".",
             {{"keep_number_layer", integer(0).or_null().min(1), "Layers kept."},
              {"module_name_prefix", text("").or_null(), "Where the layers are."},
              {"teacher_layer", any(), "Layers of the teacher."},
              {"other_module_name", any(), "Other modules that are copied."}});
  list.section("quantize_training", "Older quantisation while training.").removed();
  add_eigenvalue(list, "quantize_training.eigenvalue");
  add_eigenvalue(list, "eigenvalue");

  list.section("weight_quantization", "Quantised weights for inference under stage 3.")
      .on_when_present(/*unless_disabled=*/true);
  list.parts("weight_quantization", "weight_quantization.",
             {{"enabled", boolean(true), "Turn it on."},
              {"num_bits", integer(8).min(1), "Width."},
              {"q_type", one_of({"symmetric", "asymmetric"}, "symmetric"), "Its form."},
              {"q_groups", integer(1).min(1), "Groups of a matrix."},
              {"post_init_quant", map(), "Settings by module name."},
              {"post_init_quant.*.*", any(), "One setting."}});
  list.section("weight_quantization.quantized_initialization", "Quantise while loading.");
  list.parts("weight_quantization", "weight_quantization.quantized_initialization.",
             {{"num_bits", integer(8).or_null().min(1), "Width."},
              {"group_size", integer(0).or_null(), "Elements of a group."},
              {"group_dim", integer(0).or_null(), "Dimension of groups."},
              {"symmetric", boolean(true).or_null(), "Its form."}});
  add_sparse_attention(list);
}

}  // namespace shardwise::config
