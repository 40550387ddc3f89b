#include "shardwise/train/generation.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "shardwise/base/check.h"

namespace shardwise::train {
namespace {

// Below it every token but the likeliest has a share of 0 in fp32.
constexpr double kLeastTemperature = 1e-6;

std::int64_t choose(const at::Tensor& logits, double temperature, at::Generator& generator) {
  const at::Tensor below_best = logits - logits.max();
  SW_USER_CHECK(DataError, at::isfinite(below_best).all().item<bool>(),
                "the model's output is not finite: the training has diverged");
  if (temperature < kLeastTemperature) {
    return logits.argmax().item<std::int64_t>();
  }
  const at::Tensor shares = at::softmax(below_best / temperature, 0);
  return at::multinomial(shares, 1, /*replacement=*/false, generator).item<std::int64_t>();
}

}  // namespace

std::vector<std::int64_t> generate(LayeredEngine& engine, std::vector<std::int64_t> tokens,
                                   const GenerationOptions& options) {
  SW_USER_CHECK(UsageError, !tokens.empty(), "generation needs a prompt of at least one token");
  const EvaluationMode mode(engine);
  at::Generator generator = at::detail::createCPUGenerator(options.seed);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto visible = std::min<std::int64_t>(options.context, std::ssize(tokens));
    const at::ArrayRef<std::int64_t> recent(tokens.data() + tokens.size() - visible, visible);
    const at::Tensor input = at::tensor(recent, at::kLong).view({1, -1});
    const at::Tensor logits = engine.logits(input)
                                  .select(1, -1)
                                  .squeeze(0)
                                  .narrow(0, 0, options.vocabulary)
                                  .to(at::kCPU, at::kFloat);
    // GPUs may round differently, so the first rank chooses for all.
    const at::Tensor chosen =
        at::full({1}, choose(logits, options.temperature, generator), at::kLong)
            .to(engine.rank().device);
    engine.core().broadcast(chosen, "a generated token");
    tokens.push_back(chosen.item<std::int64_t>());
  }
  return tokens;
}

}  // namespace shardwise::train
