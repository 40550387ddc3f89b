// Trains a small Llama on a text file with the C++ library; no Python takes part.
//   shardwise launch -n 2 build/programs/example_train examples/cpp/config.json TEXT.txt
#include <ATen/ATen.h>

#include <cstdio>

#include "shardwise/config/env.h"
#include "shardwise/data/token_loader.h"
#include "shardwise/train/evaluation.h"
#include "shardwise/train/layered_engine.h"

using namespace shardwise;

constexpr const char* kShape = R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 96,
  "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
  "max_position_embeddings": 64})";

int main(int argc, char** argv) try {
  if (argc != 3) return std::puts("usage: example_train CONFIG.json TEXT.txt"), 2;
  const auto environment = config::read_launch_environment();
  const auto config = config::load_file(argv[1], {.world_size = environment.world_size});
  const auto rank = train::join_job(environment, config::read_settings(), config.config());
  const auto shape = models::read_model_config(io::JsonView::parse(kShape, "the shape"));
  train::LayeredEngine engine(models::make_model(shape, /*seed=*/0), config, rank);

  const auto bytes = data::make_tokenizer("bytes");
  const auto corpus =
      data::open_corpus({.files = {argv[2]}, .length = 64, .held_out = 0.05}, *bytes);
  const auto samples = config.config().batch.train_micro_batch_size_per_gpu;
  data::TokenLoader loader(corpus.train, {samples, rank.rank, rank.world_size});
  const at::Tensor tokens = at::empty({samples, 64}, at::kLong);
  while (engine.global_steps() < 100) {
    loader.next({tokens.data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel())});
    engine.backward(engine.loss(tokens));
    engine.step();
  }
  const auto held_out = train::evaluate(engine, *corpus.held_out, /*samples=*/0, /*micro_batch=*/8);
  if (rank.rank == 0) std::printf("held-out loss %.3f nats per byte\n", held_out.loss);
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
