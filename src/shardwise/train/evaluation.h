// Loss over held-out data.
#pragma once

#include <cstdint>

#include "shardwise/data/corpus.h"
#include "shardwise/train/layered_engine.h"

namespace shardwise::train {

struct Evaluation {
  double loss = 0;          // mean over all predicted tokens, nats
  std::int64_t tokens = 0;  // predicted
};

// The mean loss over the first `samples` samples of the corpus (0: all of them), which the ranks
// share; the same value on every rank. Without dropout and gradients. Collective.
Evaluation evaluate(LayeredEngine& engine, const data::Corpus& corpus, std::int64_t samples,
                    std::int64_t micro_batch);

}  // namespace shardwise::train
