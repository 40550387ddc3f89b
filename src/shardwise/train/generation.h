// Text from a model in training: for looking at, without caches. Serving has its own module.
#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/train/layered_engine.h"

namespace shardwise::train {

struct GenerationOptions {
  std::int64_t tokens = 0;      // to add
  std::int64_t context = 0;     // the model sees at most this many tokens
  std::int64_t vocabulary = 0;  // only tokens below it are chosen
  double temperature = 1;       // 0: the likeliest token each time
  std::uint64_t seed = 0;
};

// The prompt (at least one token) and what the model adds to it; the same on every rank.
// Collective.
std::vector<std::int64_t> generate(LayeredEngine& engine, std::vector<std::int64_t> tokens,
                                   const GenerationOptions& options);

}  // namespace shardwise::train
