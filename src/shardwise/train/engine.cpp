#include "shardwise/train/engine.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/hash.h"
#include "shardwise/base/log.h"
#include "shardwise/ops/tensor_place.h"
#include "shardwise/precision/fp8.h"
#include "shardwise/precision/loss_scale.h"
#include "shardwise/zero/equal_start.h"
#include "shardwise/zero/record_exchange.h"
#include "shardwise/zero/replica_check.h"

namespace shardwise::train {
namespace {

// fp32 and bf16 runs end after this many non-finite steps in a row: they do not recover.
constexpr int kMaxNonFiniteInARow = 20;

// Units of at most this many elements stay gathered, smallest first, as long as all of them
// together stay within the second limit.
std::vector<bool> persistent_units(const std::vector<params::UnitSpec>& units,
                                   const config::ZeroConfig& zero) {
  std::vector<std::pair<std::int64_t, std::size_t>> small;
  for (std::size_t i = 0; i < units.size(); ++i) {
    std::int64_t numel = 0;
    for (const params::ParameterSpec& parameter : units[i].parameters) {
      numel += parameter.tensor.numel();
    }
    if (numel <= zero.param_persistence_threshold) {
      small.emplace_back(numel, i);
    }
  }
  std::sort(small.begin(), small.end());
  std::vector<bool> persistent(units.size(), false);
  std::int64_t total = 0;
  for (const auto& [numel, unit] : small) {
    total += numel;
    if (total > zero.model_persistence_threshold) {
      break;
    }
    persistent[unit] = true;
  }
  return persistent;
}

params::RegistryOptions registry_options(const EngineOptions& options,
                                         const comm::ShardChannels& channels,
                                         const comm::Mesh& mesh, const zero::ZeroPlan& plan,
                                         const std::vector<params::UnitSpec>& units) {
  zero::check_same_text(channels.everybody(), options.settings, "settings",
                        "Give the same configuration and optimizer to every rank.", options.device);
  precision::check_fp8_device(options.config, options.device);
  zero::check_same_parameters(channels.everybody(), units, options.device);
  const auto persistent = persistent_units(units, options.config.zero);
  const comm::MeshAxis& shard = mesh.axis(params::kShardAxis);
  return {.rank = shard.index,
          .world_size = shard.size,
          .device = options.device,
          .shard_masters = plan.shard_optimizer,
          .sixteen_bit_masters = options.config.sixteen_bit_masters(),
          .shard_parameters =
              [plan, persistent](const params::Unit& unit) {
                return plan.shard_parameters && !persistent[unit.id];
              },
          .make_equal = zero::ValueBroadcast(channels.everybody())};
}

zero::GathererOptions gatherer_options(const config::Config& config,
                                       const params::Registry& registry) {
  zero::GathererOptions options;
  std::int64_t largest = 1;
  for (const auto& unit : registry.units()) {
    largest = std::max(largest, unit->numel());
  }
  // The ring has two buffers for units ahead unless the bucket is smaller than one unit.
  const std::int64_t bucket = config.zero.prefetch_bucket_size;
  options.prefetch_depth =
      !config.zero.overlap_comm || bucket == 0 ? 0 : (bucket <= largest ? 1 : 2);
  options.max_live_elements = config.zero.max_live_parameters;
  options.max_reuse_elements = config.zero.max_reuse_distance;
  options.keep_last = config.own.keep_last_unit;
  options.poison = config.own.poison_released;
  return options;
}

zero::ReducerOptions reducer_options(const config::Config& config, const zero::ZeroPlan& plan,
                                     const comm::ShardChannels& channels) {
  const int replicas = channels.replicate ? channels.replicate->size() : 1;
  std::optional<at::ScalarType> travel_dtype;
  if (!config.communication_data_type.empty()) {
    travel_dtype = precision::dtype_of(config.communication_data_type);
  }
  return {.plan = plan,
          .accumulation_dtype = precision::dtype_of(config.data_types.grad_accum_dtype),
          // The mean over replicas comes on top.
          .scale = config.gradient_allreduce_op == "sum" ? replicas : 1.0 / channels.reduce->size(),
          .replicate = channels.replicate,
          .max_in_flight_elements = config.zero.reduce_bucket_size,
          .travel_dtype = travel_dtype};
}

config::TraceConfig trace_on(int rank, const config::Config& config) {
  return rank == 0 ? config.own.trace : config::TraceConfig{};
}

}  // namespace

Engine::Engine(const EngineOptions& options, comm::ShardChannels channels,
               std::vector<params::UnitSpec> units)
    : options_(options),
      channels_(std::move(channels)),
      mesh_(comm::Mesh::data_parallel(channels_.everybody().rank(), channels_.everybody().size(),
                                      channels_.gather->size())),
      plan_(zero::ZeroPlan::from_stage(options.config.zero.stage)),
      registry_(std::move(units), registry_options(options, channels_, mesh_, plan_, units)),
      gatherer_(registry_, *channels_.gather, order_hash_, options.device,
                gatherer_options(options.config, registry_)),
      reducer_(registry_, *channels_.reduce, order_hash_, options.device,
               reducer_options(options.config, plan_, channels_)),
      window_({.size = options.config.batch.gradient_accumulation_steps,
               .loss_scaling = options.config.scales_loss() && !options.rule.name.empty(),
               .token_weighted = options.config.own.token_weighted_loss}),
      driver_(std::make_shared<zero::UnitDriver>(registry_, gatherer_, reducer_, plan_, channels_,
                                                 window_)),
      tensors_({registry_, gatherer_, reducer_, optimizer_}, channels_, plan_,
               [this] { return gradient_factor(); }),
      trace_(trace_on(channels_.everybody().rank(), options.config), options.device) {
  if (!options_.rule.name.empty()) {
    optimizer_ = std::make_unique<zero::ShardedOptimizer>(
        registry_, reducer_,
        zero::ShardedOptimizerOptions{.rule = options_.rule,
                                      .plan = plan_,
                                      .rank = channels_.gather->rank(),
                                      .offload = options_.config.zero.offload_optimizer == "cpu",
                                      .sixteen_bit_masters = options_.config.sixteen_bit_masters(),
                                      .sixteen_bit_states = options_.config.sixteen_bit_states(),
                                      .channel = channels_.reduce.get()});
    boundary_ = std::make_unique<zero::Boundary>(channels_.everybody(), options_.device,
                                                 registry_.trainable_count(),
                                                 optimizer_->most_norm_chunks(), boundary_rule());
  }
  driver_->install();
  note_whole_parameters();
}

// Small models look as if stage 3 did nothing.
void Engine::note_whole_parameters() const {
  const auto& segments = registry_.segments();
  const bool any_sharded = std::any_of(segments.begin(), segments.end(),
                                       [](const auto* segment) { return segment->sharded; });
  if (plan_.shard_parameters && !any_sharded && channels_.everybody().rank() == 0) {
    log_info(concat("ZeRO stage 3, but all ", registry_.units().size(),
                    " units stay whole: none has more than "
                    "zero_optimization.stage3_param_persistence_threshold = ",
                    options_.config.zero.param_persistence_threshold,
                    " elements; a smaller threshold shards them"));
  }
}

Engine::~Engine() {
  driver_->uninstall();
  driver_.reset();  // hooks that outlive the engine find nothing
}

kernels::BoundaryRule Engine::boundary_rule() const {
  kernels::BoundaryRule rule;
  rule.loss_scale = precision::loss_scale_rule(options_.config);
  rule.clip = options_.config.gradient_clipping;
  rule.norm_ranks = mesh_.axis(params::kShardAxis).size;
  if (window_.token_weighted()) {
    rule.divide_by_weight = true;
    rule.gradient_factor = ranks_in_sum();
  }
  rule.skip_non_finite = options_.config.scales_loss() || options_.config.own.non_finite != "apply";
  return rule;
}

at::Tensor Engine::loss_scale() const {
  return boundary_ && options_.config.scales_loss() ? boundary_->loss_scale() : at::Tensor();
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  driver_->watch_unfrozen();
  window_.note_scaled_by_hand();
  const at::Tensor factor = loss_scale();
  return factor.defined() ? loss * factor : loss;
}

void Engine::backward(const at::Tensor& loss, bool retain_graph, bool divide,
                      const at::Tensor& tokens) {
  at::Tensor part = loss;
  if (window_.token_weighted()) {
    SW_USER_CHECK(UsageError, tokens.defined() && tokens.numel() == 1,
                  "with shardwise.token_weighted_loss backward() needs tokens=, the number of "
                  "tokens that the loss is the mean of");
    SW_USER_CHECK(UsageError, loss.scalar_type() != at::kHalf,
                  "with shardwise.token_weighted_loss a float16 loss times its tokens overflows; "
                  "compute the loss in float32, for example of logits.float()");
    const at::Tensor weight = tokens.detach().to(loss.device()).reshape({});
    window_.add_weight(weight);
    const auto dtype = c10::promoteTypes(loss.scalar_type(), at::kFloat);
    // Without any target the loss is 0 / 0.
    part = at::where(weight > 0, loss, at::zeros_like(loss)).to(dtype) * weight.to(dtype);
  } else if (divide && window_.size() > 1) {
    part = loss / static_cast<double>(window_.size());
  }
  const at::Tensor factor = loss_scale();
  const zero::ScaledBackward announcement(*driver_);
  (factor.defined() ? part * factor : part).backward({}, retain_graph);
}

void Engine::check_gradients_are_sound() const {
  SW_USER_CHECK(UsageError, !driver_->interrupted(),
                "a backward since the last step ended by an error, so that gradients are missing: "
                "call zero_grad() and run the micro-batches of this step again");
  SW_USER_CHECK(
      UsageError, !window_.has_foreign_scale(),
      "gradients reached this engine through another engine's backward and carry that "
      "engine's loss scale: call zero_grad() before this engine's own backward, or freeze "
      "its parameters meanwhile with requires_grad_(False)");
}

void Engine::end_micro_batch() {
  check_gradients_are_sound();
  window_.end_micro_batch();
}

std::int64_t Engine::held_by_all() {
  const std::int64_t mine = window_.with_gradients();
  const std::vector<std::int64_t> all =
      zero::RecordExchange<std::int64_t>(channels_.everybody(), mine, options_.device,
                                         "the micro-batches of an unfinished window")
          .read();
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::uint64_t Engine::hash_settings() const {
  std::uint64_t hash = order_hash_.value();
  const auto add = [&hash](const auto& value) { hash = hash_bytes(&value, sizeof(value), hash); };
  add(window_.size());
  for (const optim::GroupValues& values : last_step_.groups) {
    add(values.size());
    for (const auto& [name, value] : values) {
      hash = hash_bytes(name.data(), name.size(), hash);
      add(static_cast<float>(value));
    }
  }
  return hash;
}

std::string Engine::describe_settings() const {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<float>::max_digits10);
  text << "gradient_accumulation_steps = " << window_.size() << '\n';
  for (std::size_t group = 0; group < last_step_.groups.size(); ++group) {
    for (const auto& [name, value] : last_step_.groups[group]) {
      text << "param_groups[" << group << "][\"" << name << "\"] = " << static_cast<float>(value)
           << '\n';
    }
  }
  return text.str();
}

void Engine::step(const std::vector<optim::GroupValues>& groups, std::int64_t partial_of) {
  const bool partial = partial_of > 0;
  SW_USER_CHECK(UsageError, optimizer_ != nullptr,
                "step() needs an optimizer: name one in the configuration (\"optimizer\": "
                "{\"type\": \"AdamW\"}) or pass optimizer= to initialize()");
  check_last_step();
  check_gradients_are_sound();
  SW_USER_CHECK(UsageError, partial || !reducer_.empty(),
                "step() was called but no gradient has arrived since the last step: call "
                "engine.backward(loss) first");
  registry_.check_intact();
  optimizer_->check_unchanged();
  SW_USER_CHECK(UsageError, !gatherer_.any_open(),
                "step() was called inside GatheredParameters; leave the context first");
  optimizer_->set_groups(groups);
  last_step_.groups = groups;
  const at::NoGradGuard no_grad;
  const c10::DeviceGuard device_guard(options_.device);
  gatherer_.release_all();
  reducer_.finish();
  const kernels::Place place = ops::place_on(options_.device);
  driver_->watch_unfrozen();
  const std::set<int> newcomers = driver_->unfrozen();
  order_hash_.add_unfrozen(newcomers);
  exchange_records(place);
  if (!newcomers.empty() && boundary_->ranks_agree()) {
    admit(newcomers);
    exchange_records(place);
  }
  boundary_->decide(place, partial ? window_.partial_factor(partial_of, mesh_.world_size()) : 1.0);
  order_hash_.reset();
  const std::vector<int> first = gatherer_.first();
  const std::shared_ptr<device::Event> ready = optimizer_->update(place, *boundary_, first);
  optimizer_->gather_updated(*channels_.gather, order_hash_, ready.get());
  if (ready) {
    gatherer_.note_ready(first, ready);
  }
  reducer_.clear();
  driver_->forget_unfrozen();
  window_.close(/*with_micro_batch=*/!partial || window_.had_backward());
  last_step_.unchecked = true;
  if (options_.device.is_cpu()) {
    check_last_step();
  }
  ++last_step_.number;
  const std::int64_t every = options_.config.own.check_replicas_every;
  if (every > 0 && last_step_.number % every == 0) {
    zero::check_replicas(channels_, registry_);
  }
  trace_.after_step(last_step_.number);
}

void Engine::exchange_records(const kernels::Place& place) {
  boundary_->exchange(
      place, optimizer_->norm_table(),
      {.written = reducer_.written(), .order_hash = hash_settings(), .weight = window_.weight()});
}

// Note [Parameters that join]
// A parameter that was frozen at initialize() lies in a segment without gradients and states. Once
// it requires grad its gradients are caught all the same, and each rank adds up its own. The ranks
// have to agree before a segment changes, because the collectives change with it; a rank that knows
// of no newcomer does not wait for news, so the agreement travels with what every rank sends at the
// end of a window: the newcomers go into the hash of the records. Where all hashes are equal every
// rank has the same newcomers, cuts the segments anew, reduces the gradients that waited, and the
// ranks exchange records once more, now of the whole gradient. Otherwise the records are like those
// of ranks that did different things: the step is not applied and the error names a parameter.
void Engine::admit(const std::set<int>& newcomers) {
  const std::vector<params::Segment*> made =
      registry_.unfreeze(newcomers, [this](const params::Segment& segment) {
        return tensors_.full_state().whole_segment(segment, segment.shard.data());
      });
  gatherer_.forget_buffers();
  reducer_.join(made);
  optimizer_->join(made);
  boundary_->grow(registry_.trainable_count(), optimizer_->most_norm_chunks());
  std::string without_group;
  for (const int index : newcomers) {
    const params::Parameter& parameter = registry_.parameters()[index].parameter();
    if (parameter.group < 0) {
      without_group += concat(without_group.empty() ? "" : ", ", parameter.name);
    }
  }
  if (!without_group.empty() && channels_.everybody().rank() == 0) {
    log_warning(concat(
        "unfrozen, but in no parameter group of the optimizer, so that they get "
        "gradients and do not move: ",
        without_group, ". Call engine.optimizer.add_param_group({\"params\": [...]}) for them."));
  }
}

const kernels::BoundaryResult* Engine::last_result() {
  if (!boundary_ || !boundary_->result()) {
    return nullptr;
  }
  return &*boundary_->result();
}

// Errors of a step are raised where all ranks come by: at its end on the CPU, at the next step on a
// GPU, where the host does not know the outcome before.
void Engine::check_last_step() {
  if (!last_step_.unchecked) {
    return;
  }
  last_step_.unchecked = false;
  const kernels::BoundaryResult result = *last_result();
  if (result.order_mismatch != 0) {
    zero::check_same_text(channels_.everybody(), describe_settings(),
                          "values for a step, which was not applied",
                          "Set them alike on every rank.", options_.device);
  }
  SW_USER_CHECK(
      CommunicationError, result.order_mismatch == 0,
      "the ranks did different things in the last step, which was not applied: ",
      explain_order_difference(channels_.everybody(), order_hash_, registry_, options_.device),
      ". Every rank must run the same blocks in the same order, and unfreeze the same parameters "
      "before the same step.");
  if (result.overflow == 0) {
    last_step_.non_finite_in_a_row = 0;
    return;
  }
  report_non_finite(result);
}

void Engine::report_non_finite(const kernels::BoundaryResult& result) {
  const std::string where =
      concat("the gradient of ",
             result.bad_parameter >= 0 ? registry_.trainable(result.bad_parameter).parameter().name
                                       : std::string("a parameter"),
             " is not finite after the reduction (seen in the shard of rank ", result.bad_rank,
             "; the values may come from any rank)");
  if (options_.config.scales_loss() && options_.config.fp16.loss_scale == 0) {
    SW_USER_CHECK(UsageError, result.at_min_scale == 0, where,
                  " although the loss scale is at its "
                  "minimum of ",
                  result.loss_scale,
                  ". fp16 cannot represent this training: use "
                  "bf16, lower the learning rate, or look for a division by zero in the model.");
    if (channels_.everybody().rank() == 0) {
      log_info(concat("step skipped: ", where, " at loss scale ", result.loss_scale,
                      "; the scale is now ", result.next_loss_scale));
    }
    return;
  }
  const std::string& policy = options_.config.own.non_finite;
  ++last_step_.non_finite_in_a_row;
  SW_USER_CHECK(UsageError, policy != "raise", where,
                "; the step was skipped (shardwise.non_finite is \"raise\")");
  SW_USER_CHECK(UsageError, last_step_.non_finite_in_a_row < kMaxNonFiniteInARow, where, ", in ",
                kMaxNonFiniteInARow,
                " steps in a row. Look at the data, the learning rate and a static loss scale.");
  if (channels_.everybody().rank() == 0) {
    log_warning(concat(where, result.applied != 0 ? "; applied as shardwise.non_finite asks"
                                                  : "; the step was skipped"));
  }
}

void Engine::zero_grad() {
  reducer_.clear();
  driver_->forget_unfrozen();
  window_.forget_gradients();
  driver_->forget_interruption();
}

void Engine::set_accumulation(std::int64_t size, at::ScalarType dtype) {
  window_.resize(size);
  reducer_.set_accumulation_dtype(dtype);
}

// What held gradients are divided by to be the user's. Collective where losses count by tokens.
at::Tensor Engine::gradient_factor() {
  const at::Tensor scale = loss_scale();
  if (!window_.token_weighted()) {
    return scale;
  }
  const at::Tensor weight = token_factor().reciprocal();
  return scale.defined() ? scale * weight : weight;
}

// What the boundary multiplies reduced gradients with where losses count by their tokens.
at::Tensor Engine::token_factor() {
  const at::Tensor mine =
      window_.weight().defined()
          ? window_.weight().reshape({1})
          : at::zeros({1}, at::TensorOptions(at::kDouble).device(options_.device));
  const at::Tensor all = at::empty({channels_.everybody().size()}, mine.options());
  channels_.everybody().all_gather(all, mine, "the tokens of the window")->wait();
  return ranks_in_sum() / all.sum();
}

// What turns a reduced gradient into the sum over ranks.
double Engine::ranks_in_sum() const {
  return options_.config.gradient_allreduce_op == "sum" ? 1.0 : mesh_.world_size();
}

at::Tensor Engine::assemble(int parameter, const at::Tensor& piece) {
  return tensors_.full_state().assemble(parameter, piece);
}

void Engine::assign_group(const std::vector<int>& parameters, int group) {
  for (const int parameter : parameters) {
    const params::ParameterAddress& address = registry_.parameters().at(parameter);
    if (address.parameter().trainable >= 0 && address.parameter().group < 0) {
      boundary_->restart_steps(address.parameter().trainable);
    }
    order_hash_.add(comm::Collective::kBroadcast, address.unit, parameter);  // ranks do it alike
  }
  optimizer_->assign_group(parameters, group);
}

void Engine::broadcast(const at::Tensor& tensor, const std::string& what) {
  if (channels_.everybody().size() > 1 && tensor.numel() > 0) {
    const at::NoGradGuard no_grad;
    const at::Tensor contiguous = tensor.contiguous();
    channels_.everybody().broadcast(contiguous, 0, what)->wait();
    if (!contiguous.is_same(tensor)) {
      tensor.copy_(contiguous);
    }
  }
}

MemoryReport Engine::memory_report(params::Tier tier) const {
  MemoryReport report;
  report.optimizer = optimizer_ ? optimizer_->bytes(tier) : 0;
  for (const params::Segment* segment : registry_.segments()) {
    if (segment->shard.tier() == tier) {
      report.parameters += segment->sharded ? segment->shard.bytes() : segment->bytes();
    }
  }
  if (tier == params::Tier::kDevice) {
    report.gradients = reducer_.accumulator_bytes();
    report.ring = gatherer_.ring_bytes();
    report.gradients_in_flight = reducer_.in_flight_bytes();
  }
  return report;
}

comm::Traffic Engine::traffic(comm::Collective collective) const {
  comm::Traffic all;
  for (comm::Channel* channel : channels_.list()) {
    // One rank alone carries nothing out, unless told to.
    if (channel->size() > 1 || options_.config.own.force_communication) {
      all.add(channel->traffic(collective));
    }
  }
  return all;
}

void Engine::reset_traffic() {
  for (comm::Channel* channel : channels_.list()) {
    channel->reset_traffic();
  }
}

bool Engine::communication_failed() const {
  const auto channels = channels_.list();
  return std::any_of(channels.begin(), channels.end(),
                     [](const comm::Channel* channel) { return channel->failed(); });
}

void Engine::dismantle(bool whole) {
  if (whole) {
    check_last_step();  // on a GPU the last step's outcome has not been looked at yet
  }
  driver_->uninstall();
  gatherer_.release_all();
  reducer_.clear();
  if (whole) {
    for (const auto& unit : registry_.units()) {
      tensors_.full_state().hand_back(*unit);
    }
  }
}

}  // namespace shardwise::train
