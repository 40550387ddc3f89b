#include "shardwise/train/trainer.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/train/evaluation.h"
#include "shardwise/train/generation.h"

namespace shardwise::train {
namespace {

namespace fs = std::filesystem;

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

models::Model build_model(const config::Job& job) {
  const config::JobModel& model = job.model;
  if (!model.path.empty() && model.load_weights) {
    return models::load_model(model.path);
  }
  const auto document = model.path.empty()
                            ? io::JsonView::parse(model.config_json, "model.config")
                            : io::JsonView::read((fs::path(model.path) / "config.json").string());
  return models::make_model(models::read_model_config(document), job.training.seed);
}

void check_fits(const models::ModelConfig& model, const data::Corpus& corpus,
                const config::JobData& data) {
  SW_USER_CHECK(ConfigError, corpus.vocabulary() <= model.vocabulary,
                "data.tokenizer: ", data.tokenizer, " has ", corpus.vocabulary(),
                " tokens but the model's vocab_size is ", model.vocabulary,
                "; use the model's tokenizer, or a vocab_size of at least ", corpus.vocabulary());
  SW_USER_CHECK(ConfigError,
                model.longest_sequence == 0 || data.sequence_length <= model.longest_sequence,
                "data.sequence_length: ", data.sequence_length, " is more than the model's ",
                model.longest_sequence, " positions; make it at most that");
}

// What from_pretrained() looks for besides weights and config.json.
void copy_tokenizer_files(const std::string& tokenizer, const fs::path& folder) {
  const fs::path source =
      fs::is_directory(tokenizer) ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    std::error_code error;
    if (fs::exists(source / name, error) && !fs::equivalent(source, folder, error)) {
      fs::copy_file(source / name, folder / name, fs::copy_options::overwrite_existing, error);
      SW_USER_CHECK(IoError, !error, (folder / name).string(), ": ", error.message());
    }
  }
}

}  // namespace

Trainer::Trainer(const config::Job& job, const Rank& rank) : job_(job) {
  models::Model model = build_model(job_);
  tokenizer_ = data::make_tokenizer(job_.data.tokenizer);
  corpus_ = data::open_corpus({.files = job_.data.files,
                               .length = job_.data.sequence_length,
                               .held_out = job_.data.held_out,
                               .held_out_files = job_.data.held_out_files},
                              *tokenizer_);
  check_fits(model.config(), *corpus_.train, job_.data);
  loader_ = std::make_unique<data::TokenLoader>(
      corpus_.train,
      data::LoaderOptions{.micro_batch = job_.engine.config().batch.train_micro_batch_size_per_gpu,
                          .rank = rank.rank,
                          .world_size = rank.world_size,
                          .seed = job_.training.seed,
                          .shuffle = job_.data.shuffle});
  // Dropout differs between ranks, everything else is seeded on its own.
  at::manual_seed(job_.training.seed * static_cast<std::uint64_t>(rank.world_size) + rank.rank);
  engine_ = std::make_unique<LayeredEngine>(std::move(model), job_.engine, rank);
}

monitor::RunInfo Trainer::describe() const {
  const config::Config& config = job_.engine.config();
  return {.title = concat(engine_->model().config().model_type, ", ",
                          engine_->model().parameter_count(), " parameters, ", config.model_dtype(),
                          ", ZeRO ", config.zero.stage, ", ", engine_->rank().world_size,
                          " rank(s) on ", engine_->rank().device.is_cpu() ? "CPU" : "GPU"),
          .steps = job_.training.steps,
          .config_json = job_.engine.to_json(/*with_origins=*/false)};
}

void Trainer::run(monitor::Sink& sink) {
  sink.begin(describe());
  begin_ = previous_ = Clock::now();
  const std::int64_t every = job_.training.evaluate_every;
  for (std::int64_t step = 1; step <= job_.training.steps; ++step) {
    train_step(step, sink);
    if (every > 0 && step % every == 0 && step < job_.training.steps) {
      evaluate_now(step, sink);
    }
  }
  evaluate_now(job_.training.steps, sink);
  write_sample(sink);
  save_weights();
}

void Trainer::train_step(std::int64_t step, monitor::Sink& sink) {
  const config::BatchConfig& batch = job_.engine.config().batch;
  const std::int64_t length = job_.data.sequence_length;
  const at::Tensor losses = at::zeros({1}, engine_->rank().device);
  const at::Tensor tokens = at::empty({batch.train_micro_batch_size_per_gpu, length}, at::kLong);
  double lr = 0;
  for (bool updated = false; !updated;) {
    loader_->next({tokens.data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel())});
    const at::Tensor loss = engine_->loss(tokens);
    engine_->backward(loss);
    losses.add_(loss.detach(), 1.0 / static_cast<double>(batch.gradient_accumulation_steps));
    report_pending(sink);
    lr = engine_->lr();
    updated = engine_->step();
  }
  engine_->sum_over_ranks(losses);
  pending_ = {step, losses, lr, Clock::now()};
  if (engine_->rank().device.is_cpu()) {
    report_pending(sink);
  }
}

void Trainer::report_pending(monitor::Sink& sink) {
  if (!pending_) {
    return;
  }
  const PendingStep step = *std::exchange(pending_, std::nullopt);
  const kernels::BoundaryResult& result = *engine_->last_result();
  const config::BatchConfig& batch = job_.engine.config().batch;
  const std::int64_t tokens = batch.train_batch_size * job_.data.sequence_length;
  const double loss = step.loss.item<double>() / engine_->rank().world_size;
  const Clock::time_point now = Clock::now();
  sink.step({.step = step.step,
             .loss = loss,
             .lr = step.lr,
             .grad_norm = result.norm,
             .loss_scale = result.loss_scale,
             .skipped = result.applied == 0,
             .tokens_per_second = static_cast<double>(tokens) / seconds_between(previous_, now),
             .tokens = tokens * step.step,
             .samples = batch.train_batch_size * step.step,
             .seconds = seconds_between(begin_, now)});
  previous_ = now;
}

void Trainer::evaluate_now(std::int64_t step, monitor::Sink& sink) {
  report_pending(sink);
  if (corpus_.held_out) {
    const Evaluation result = evaluate(*engine_, *corpus_.held_out, job_.training.evaluate_samples,
                                       job_.engine.config().batch.train_micro_batch_size_per_gpu);
    sink.evaluation({.step = step, .loss = result.loss, .tokens = result.tokens});
    previous_ = Clock::now();
  }
}

void Trainer::write_sample(monitor::Sink& sink) {
  const config::JobTraining& training = job_.training;
  if (training.sample_prompt.empty()) {
    return;
  }
  std::vector<std::int64_t> tokens = tokenizer_->encode(training.sample_prompt);
  const std::size_t prompt = tokens.size();
  tokens = generate(*engine_, std::move(tokens),
                    {.tokens = training.sample_tokens,
                     .context = job_.data.sequence_length,
                     .temperature = training.sample_temperature,
                     .seed = training.seed});
  const std::span<const std::int64_t> added(tokens.begin() + prompt, tokens.end());
  sink.sample(training.steps, training.sample_prompt, tokenizer_->decode(added, true));
}

void Trainer::save_weights() {
  if (!job_.training.save_weights) {
    return;
  }
  const std::vector<models::NamedParameter> weights = engine_->weights();
  if (engine_->rank().rank == 0) {
    const fs::path folder = fs::path(job_.training.output) / "model";
    models::save_model(folder.string(), engine_->model().config(), weights);
    if (job_.data.tokenizer != "bytes") {
      copy_tokenizer_files(job_.data.tokenizer, folder);
    }
    log_info(concat("weights in Hugging Face's layout: ", folder.string()));
  }
}

}  // namespace shardwise::train
