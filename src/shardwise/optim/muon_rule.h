// Muon's part of the table of rules: which parameters it takes, and its hyperparameters. The update
// of whole matrices is zero/muon.h; everything else that the optimizer holds moves by AdamW.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shardwise/optim/update_rule.h"

namespace shardwise::optim {

// Whether Muon moves a parameter of this canonical name and number of dimensions: matrices and
// stacks of them, but for embeddings and heads, known by their names in any case ("embed",
// "lm_head" as DeepSpeed has it; "wte" and "wpe", GPT-2's embeddings, which DeepSpeed overlooks).
bool muon_takes(const std::string& name, std::int64_t dimensions);

// kMuonRule. A group with use_muon 1 holds matrices only and reads lr, weight_decay, momentum,
// nesterov, ns_steps, ns_a, ns_b, ns_c, eps, match_rms_adamw and gram; one with 0 reads lr, beta1,
// beta2, eps and weight_decay.
std::unique_ptr<UpdateRule> make_muon();

}  // namespace shardwise::optim
