#include "shardwise/train/trainer.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/hash.h"
#include "shardwise/base/log.h"
#include "shardwise/device/memory.h"
#include "shardwise/io/atomic_file.h"
#include "shardwise/models/job_model.h"
#include "shardwise/train/evaluation.h"
#include "shardwise/train/generation.h"
#include "shardwise/train/token_rows.h"

namespace shardwise::train {
namespace {

namespace fs = std::filesystem;

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

void copy_whole(const fs::path& from, const fs::path& to) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  io::AtomicFile file(to.string());
  file.write(io::read_text(from.string(), kMost));
  file.commit();
}

// What from_pretrained() looks for besides weights and config.json.
void copy_tokenizer_files(const std::string& tokenizer, const fs::path& folder) {
  std::error_code none;
  const bool in_folder = fs::is_directory(tokenizer, none);
  const fs::path file = in_folder ? fs::path(tokenizer) / "tokenizer.json" : fs::path(tokenizer);
  copy_whole(file, folder / "tokenizer.json");
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (fs::is_regular_file(file.parent_path() / name, none)) {
      copy_whole(file.parent_path() / name, folder / name);
    }
  }
}

void remove_tokenizer_files(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    ::unlink((folder / name).c_str());
  }
}

void check_finite(const std::vector<models::NamedParameter>& weights, const std::string& folder) {
  for (const models::NamedParameter& weight : weights) {
    SW_USER_CHECK(DataError, at::isfinite(weight.tensor).all().item<bool>(), "the training has ",
                  "diverged: ", weight.name, " is not finite at the end. Nothing was saved to ",
                  folder, "; lower the learning rate");
  }
}

// Tells corpora apart by their size and up to kProbes samples of them.
std::string describe_corpus(const std::shared_ptr<const data::Corpus>& corpus) {
  constexpr std::int64_t kProbes = 64;
  if (!corpus) {
    return "none";
  }
  std::vector<std::int64_t> sample(static_cast<std::size_t>(corpus->length()));
  std::uint64_t hash = kHashSeed;
  for (std::int64_t i = 0; i < std::min(kProbes, corpus->size()); ++i) {
    corpus->read(i * corpus->size() / std::min(kProbes, corpus->size()), sample);
    hash = hash_bytes(sample.data(), sample.size() * sizeof(std::int64_t), hash);
  }
  return concat(corpus->size(), " samples, digest ", hash);
}

}  // namespace

Trainer::Trainer(const config::Job& job, const Rank& rank) : job_(job) {
  const models::ModelConfig shape = models::read_job_model(job_);
  tokenizer_ = data::make_tokenizer(job_.data.tokenizer, "data.tokenizer");
  const std::string warning = models::check_fits(shape, job_.data, tokenizer_->vocabulary_size());
  if (!warning.empty() && rank.rank == 0) {
    log_warning(warning);
  }
  prompt_ = data::encode_prompt(*tokenizer_, job_.training.sample_prompt);
  corpus_ = data::open_corpus(data::corpus_options(job_.data), *tokenizer_);
  loader_ =
      data::make_loader(corpus_, job_.data.held_out,
                        {.micro_batch = job_.engine.config().batch.train_micro_batch_size_per_gpu,
                         .rank = rank.rank,
                         .world_size = rank.world_size,
                         .seed = job_.training.seed,
                         .shuffle = job_.data.shuffle});
  models::Model model = job_.model.load_weights
                            ? models::load_model(job_.model.path)
                            : models::make_model_for(rank.device, shape, job_.training.seed);
  // Dropout differs between ranks, everything else is seeded on its own.
  at::manual_seed(job_.training.seed * static_cast<std::uint64_t>(rank.world_size) + rank.rank);
  engine_ = std::make_unique<LayeredEngine>(
      std::move(model), job_.engine, rank,
      concat("data.files = ", describe_corpus(corpus_.train),
             "\nheld-out data = ", describe_corpus(corpus_.held_out)));
}

monitor::RunInfo Trainer::describe() const {
  const config::Config& config = job_.engine.config();
  return {.title = concat(engine_->model().config().model_type, ", ",
                          engine_->model().parameter_count(), " parameters, ", config.model_dtype(),
                          config.own.fp8 == "off" ? "" : concat(" and fp8 ", config.own.fp8),
                          ", ZeRO ", config.zero.stage, ", ", engine_->rank().world_size,
                          " rank(s) on ", engine_->rank().device.is_cpu() ? "CPU" : "GPU"),
          .steps = job_.training.steps,
          .config_json = job_.engine.to_json(/*with_origins=*/false)};
}

void Trainer::run(monitor::Sink& sink, const StopSignal& stop) {
  sink.begin(describe());
  try {
    train(sink, stop);
    check_converged();
    save_weights(sink);
    write_sample(sink);
    engine_->wait_for_ranks();
  } catch (const std::exception& error) {
    sink.end(error.what());
    throw;
  }
  sink.end("");
}

void Trainer::check_not_stopped(const StopSignal& stop, std::int64_t step) {
  SW_USER_CHECK(UsageError, stop.received() == 0, "ended by signal ", stop.received(),
                " before the end of step ", step, "; the weights were not saved");
}

void Trainer::train(monitor::Sink& sink, const StopSignal& stop) {
  begin_ = previous_ = Clock::now();
  const std::int64_t every = job_.training.evaluate_every;
  for (std::int64_t step = 1; step <= job_.training.steps; ++step) {
    check_not_stopped(stop, step);
    try {
      train_step(step, sink);
      if (every > 0 && step % every == 0 && step < job_.training.steps) {
        evaluate_now(step, sink);
      }
    } catch (const CommunicationError&) {
      check_not_stopped(stop, step);  // another rank was, a step earlier
      throw;
    }
  }
  evaluate_now(job_.training.steps, sink);
}

void Trainer::check_converged() const {
  for (const auto& [what, loss] : {std::pair("the loss of the last step", last_loss_),
                                   std::pair("the held-out loss", last_held_out_loss_)}) {
    SW_USER_CHECK(DataError, std::isfinite(loss), "the training has diverged: ", what, " is ", loss,
                  ". Nothing was saved to ", job_.training.output,
                  "/model; lower the learning rate");
  }
}

void Trainer::train_step(std::int64_t step, monitor::Sink& sink) {
  const config::BatchConfig& batch = job_.engine.config().batch;
  const std::int64_t length = job_.data.sequence_length;
  const bool by_tokens = job_.engine.config().own.token_weighted_loss;
  const at::Tensor sums = at::zeros({2}, engine_->rank().device);  // of weighted losses, of weights
  const at::Tensor ids = at::empty({batch.train_micro_batch_size_per_gpu, length}, at::kLong);
  for (bool updated = false; !updated;) {
    const models::Tokens tokens = token_rows(ids, loader_->next(values(ids)));
    const at::Tensor loss = engine_->loss(tokens);
    const std::int64_t predicted = tokens.predicted();
    engine_->backward(loss, at::full({}, predicted, sums.options().dtype(at::kLong)));
    const std::int64_t weight = by_tokens ? predicted : 1;
    if (predicted > 0) {  // else the loss is 0 / 0
      sums[0].add_(loss.detach(), weight);
    }
    sums[1].add_(weight);
    report_pending(sink);
    updated = engine_->step();
  }
  engine_->sum_over_ranks(sums);
  const at::Device device = engine_->rank().device;
  const at::Tensor mean =
      at::empty({}, at::TensorOptions(at::kFloat).pinned_memory(!device.is_cpu()));
  mean.copy_(sums[0] / sums[1].clamp_min(1), /*non_blocking=*/true);
  pending_ = PendingStep{step, mean, device::Event(device), engine_->last_lr()};
  pending_->arrived.record();
  if (device.is_cpu()) {
    report_pending(sink);
  }
}

void Trainer::report_pending(monitor::Sink& sink) {
  if (!pending_) {
    return;
  }
  PendingStep step = *std::exchange(pending_, std::nullopt);
  step.arrived.synchronize();
  const kernels::BoundaryResult& result = *engine_->last_result();
  const config::BatchConfig& batch = job_.engine.config().batch;
  const std::int64_t tokens = batch.train_batch_size * job_.data.sequence_length;
  const double loss = step.loss.item<double>();
  last_loss_ = loss;
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
             .seconds = seconds_between(begin_, now),
             .peak_memory = device::peak_memory(engine_->rank().device)});
  previous_ = now;
}

void Trainer::evaluate_now(std::int64_t step, monitor::Sink& sink) {
  report_pending(sink);
  if (corpus_.held_out) {
    const Evaluation result = evaluate(*engine_, *corpus_.held_out, job_.training.evaluate_samples,
                                       job_.engine.config().batch.train_micro_batch_size_per_gpu);
    last_held_out_loss_ = result.loss;
    sink.evaluation({.step = step, .loss = result.loss, .tokens = result.tokens});
    previous_ = Clock::now();
  }
}

void Trainer::write_sample(monitor::Sink& sink) {
  const config::JobTraining& training = job_.training;
  if (training.sample_prompt.empty()) {
    return;
  }
  const std::vector<std::int64_t> tokens = generate(*engine_, prompt_,
                                                    {.tokens = training.sample_tokens,
                                                     .context = job_.data.sequence_length,
                                                     .vocabulary = tokenizer_->vocabulary_size(),
                                                     .temperature = training.sample_temperature,
                                                     .seed = training.seed});
  const std::span<const std::int64_t> added(tokens.begin() + std::ssize(prompt_), tokens.end());
  sink.sample(training.steps, training.sample_prompt, tokenizer_->decode(added, true));
}

void Trainer::save_weights(monitor::Sink& sink) {
  if (!job_.training.save_weights) {
    return;
  }
  const std::vector<models::NamedParameter> weights = engine_->weights();
  if (engine_->rank().rank == 0) {
    const fs::path folder = fs::path(job_.training.output) / "model";
    check_finite(weights, folder.string());
    models::save_model(folder.string(), engine_->model().config(), weights);
    remove_tokenizer_files(folder);
    if (job_.data.tokenizer != "bytes") {
      copy_tokenizer_files(job_.data.tokenizer, folder);
    }
    sink.note(concat("weights in Hugging Face's layout: ", folder.string()));
  }
}

}  // namespace shardwise::train
