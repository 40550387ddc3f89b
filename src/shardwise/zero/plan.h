// The ZeRO stage as data (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", section 5). One gatherer, one reducer and one optimizer read it;
// there is no class per stage.
#pragma once

namespace shardwise::zero {

struct ZeroPlan {
  bool shard_optimizer = false;   // P_os: master weights and moments
  bool shard_gradients = false;   // P_os+g: gradients are reduce-scattered after each micro-batch
  bool shard_parameters = false;  // P_os+g+p: parameters are gathered around each use

  // 0 … 3 → 000, 100, 110, 111.
  static ZeroPlan from_stage(int stage) { return {stage >= 1, stage >= 2, stage >= 3}; }
};

}  // namespace shardwise::zero
