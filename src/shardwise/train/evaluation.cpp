#include "shardwise/train/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "shardwise/train/token_rows.h"

namespace shardwise::train {

Evaluation evaluate(LayeredEngine& engine, const data::Corpus& corpus, std::int64_t samples,
                    std::int64_t micro_batch) {
  const EvaluationMode mode(engine);
  const std::int64_t count = samples > 0 ? std::min(samples, corpus.size()) : corpus.size();
  const std::int64_t stride = micro_batch * engine.rank().world_size;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  // Sharded parameters are gathered in each pass, so all ranks make the same number of passes;
  // those without samples left compute one again and do not count it.
  for (std::int64_t first = 0; first < count; first += stride) {
    const std::int64_t begin = std::min(first + micro_batch * engine.rank().rank, count);
    const std::int64_t rows = std::min(micro_batch, count - begin);
    std::vector<std::int64_t> places(static_cast<std::size_t>(std::max<std::int64_t>(rows, 1)));
    std::iota(places.begin(), places.end(), rows > 0 ? begin : 0);
    const at::Tensor ids = at::empty({std::ssize(places), corpus.length()}, at::kLong);
    const models::Tokens tokens = token_rows(ids, data::read_samples(corpus, places, values(ids)));
    const double loss = engine.loss(tokens).item<double>();
    if (rows > 0 && tokens.predicted() > 0) {
      const auto predicted = static_cast<double>(tokens.predicted());
      sums += at::tensor({loss * predicted, predicted}, at::kDouble);
    }
  }
  at::Tensor on_device = sums.to(engine.rank().device);
  engine.sum_over_ranks(on_device);
  sums = on_device.cpu();
  const double tokens = sums[1].item<double>();
  return {sums[0].item<double>() / tokens, static_cast<std::int64_t>(tokens)};
}

}  // namespace shardwise::train
