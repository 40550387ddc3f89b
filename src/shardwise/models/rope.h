// Rotary position embeddings (Su et al. 2021, https://arxiv.org/abs/2104.09864) with the kinds of
// scaling of Hugging Face, to the same bits where they are computed on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "shardwise/models/model_config.h"

namespace shardwise::models {

struct RopeTables {
  at::Tensor cosines, sines;  // [seq, head_dim / 2], fp32, no gradient: as ops::rope takes them
};

// Cosines and sines for the positions from 0. Shared by the blocks of a model; thread-safe.
class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  // For `sequence` positions, with the frequencies of documents of up to `longest` tokens. Computed
  // in fp32 on the CPU, then moved. The last answer is kept, so the blocks of a pass share one.
  // With dynamic and longrope scaling the frequencies follow from `longest` alone; transformers
  // keeps those of the longest sequence that it has seen.
  RopeTables tables(std::int64_t sequence, std::int64_t longest, at::Device device) const;

  // [head_dim / 2], fp32, CPU: radians a token.
  at::Tensor frequencies(std::int64_t sequence) const;

 private:
  RopeTables compute(std::int64_t sequence, std::int64_t longest, at::Device device) const;
  // Lengths with the same one have the same frequencies.
  std::int64_t regime(std::int64_t longest) const;

  struct Kept {
    std::int64_t sequence, regime;
    RopeTables tables;
  };
  RopeConfig config_;
  std::int64_t head_dim_, max_positions_;
  mutable std::mutex mutex_;
  mutable std::optional<Kept> kept_;
};

}  // namespace shardwise::models
