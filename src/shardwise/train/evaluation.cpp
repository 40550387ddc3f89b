#include "shardwise/train/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace shardwise::train {

Evaluation evaluate(LayeredEngine& engine, const data::Corpus& corpus, std::int64_t samples,
                    std::int64_t micro_batch) {
  const EvaluationMode mode(engine);
  const std::int64_t count = samples > 0 ? std::min(samples, corpus.size()) : corpus.size();
  const std::int64_t length = corpus.length();
  const std::int64_t stride = micro_batch * engine.rank().world_size;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  // Sharded parameters are gathered in each pass, so all ranks make the same number of passes;
  // those without samples left compute one again and do not count it.
  for (std::int64_t first = 0; first < count; first += stride) {
    const std::int64_t begin = std::min(first + micro_batch * engine.rank().rank, count);
    const std::int64_t rows = std::min(micro_batch, count - begin);
    const at::Tensor tokens = at::empty({std::max<std::int64_t>(rows, 1), length}, at::kLong);
    for (std::int64_t row = 0; row < tokens.size(0); ++row) {
      corpus.read(rows > 0 ? begin + row : 0,
                  {tokens.data_ptr<std::int64_t>() + row * length, static_cast<size_t>(length)});
    }
    const double loss = engine.loss(tokens).item<double>();
    if (rows > 0) {
      const auto predicted = static_cast<double>(rows * (length - 1));
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
