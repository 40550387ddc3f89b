#include "shardwise/zero/reducer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::zero {

using params::Parameter;
using params::Segment;

namespace {

// Reductions in flight at one time: one is being carried out while backward fills the next buffer.
// More would hold memory and hide nothing.
constexpr std::size_t kMaxInFlight = 2;

// Gradients are collected up to this many elements, so that large ones are not held twice for long
// while the many small ones of a block share a kernel.
constexpr std::int64_t kMaxCollected = 1 << 24;

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == b.layout() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.const_data_ptr() == b.const_data_ptr();
}

}  // namespace

Reducer::Reducer(const params::Registry& registry, comm::Channel& channel, OrderHash& hash,
                 at::Device device, ReducerOptions options)
    : registry_(registry),
      channel_(channel),
      hash_(hash),
      options_(options),
      pool_(device),
      states_(registry.segments().size()),
      written_(registry.trainable_count(), 0) {
  allocate();
  drop_visible();  // gradients from before the engine belong to no step of it
}

at::ScalarType Reducer::accumulator_dtype(const Segment& segment) const {
  return segment.dtype == at::kHalf || segment.dtype == at::kBFloat16 ? options_.accumulation_dtype
                                                                      : segment.dtype;
}

void Reducer::allocate() {
  for (const Segment* segment : registry_.segments()) {
    if (segment->trainable) {
      allocate_segment(*segment);
    }
  }
}

void Reducer::allocate_segment(const Segment& segment) {
  State& state = states_[segment.id];
  const auto options = at::TensorOptions(accumulator_dtype(segment)).device(pool_.device());
  state.in_whole.assign(segment.parameters.size(), 0);
  state.collected.assign(segment.parameters.size(), at::Tensor());
  state.shown.assign(segment.parameters.size(), at::Tensor());
  state.views.clear();
  if (options_.plan.shard_gradients) {
    state.shard = at::zeros({segment.layout.shard_numel}, options);
  } else {
    state.whole = at::zeros({segment.layout.numel}, options);
    const params::Range mine = segment.layout.shard_of(channel_.rank());
    state.shard = state.whole.narrow(0, mine.begin, mine.size());
  }
}

void Reducer::set_accumulation_dtype(at::ScalarType dtype) {
  if (dtype == options_.accumulation_dtype) {
    return;
  }
  SW_CHECK(empty(), "the accumulation dtype cannot change while gradients are held");
  options_.accumulation_dtype = dtype;
  allocate();
}

void Reducer::write(int index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters()[index];
  const Parameter& parameter = address.parameter();
  SW_USER_CHECK(UsageError, gradient.sizes() == at::IntArrayRef(parameter.sizes),
                "the gradient of ", parameter.name, " has shape ", gradient.sizes(),
                " but the parameter had shape ", at::IntArrayRef(parameter.sizes),
                " when the engine was made");
  const bool watched = torch::autograd::impl::post_acc_grad_hooks(parameter.tensor) != nullptr;
  SW_USER_CHECK(UsageError, !watched || !options_.plan.shard_gradients, "parameter ",
                parameter.name,
                " has a hook by register_post_accumulate_grad_hook(), which wants to see its "
                "gradients in .grad, where ZeRO stages 2 and 3 have none: use stage 0 or 1, or "
                "register_hook(), which gets each gradient");
  if (parameter.trainable >= 0) {
    write_slot(*address.segment, address.slot, gradient);
    return;
  }
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  at::Tensor& sum = waiting(index);
  if (sum.defined()) {
    sum.add_(dense);
  } else {
    sum = dense.to(accumulator_dtype(*address.segment), /*non_blocking=*/false, /*copy=*/true);
  }
  touched_ = true;
}

// Where the gradient of a parameter in a frozen segment is added up. At stages 0–1 that is `.grad`,
// which a user may change or drop until step().
at::Tensor& Reducer::waiting(int index) {
  at::Tensor& sum = waiting_[index];
  return options_.plan.shard_gradients
             ? sum
             : registry_.parameters()[index].parameter().tensor.mutable_grad();
}

// Before a gradient of the parameter is written or added to the flat buffer.
void Reducer::begin_writing(const Segment& segment, int slot) {
  State& state = states_[segment.id];
  const Parameter& parameter = segment.parameters[slot];
  if (!state.whole.defined()) {
    state.whole = pool_.take(segment.layout.numel, segment.dtype);
  }
  if (state.collected[slot].defined()) {
    flush_segment(segment);
  }
  if (!options_.plan.shard_gradients) {
    at::Tensor& visible = parameter.tensor.mutable_grad();
    if (visible.defined() && !same_memory(visible, views(segment)[slot])) {
      take_replaced();
    }
    if (!visible.defined()) {  // new, or thrown away by the user
      state.in_whole[slot] = 0;
      show(segment, slot);
    }
  }
  written_[parameter.trainable] = 1;
  touched_ = true;
  finished_ = false;
}

void Reducer::write_slot(const Segment& segment, int slot, const at::Tensor& gradient) {
  begin_writing(segment, slot);
  State& state = states_[segment.id];
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (!options_.plan.shard_gradients) {  // at once: hooks of the program see and change `.grad`
    const at::Tensor& target = views(segment)[slot];
    state.in_whole[slot] ? target.add_(dense) : target.copy_(dense);
    state.in_whole[slot] = 1;
    return;
  }
  state.collected[slot] = dense;
  state.collected_elements += segment.parameters[slot].place.size();
  if (state.collected_elements >= kMaxCollected) {
    flush_segment(segment);
  }
}

// Whether the parameters' places, one behind the other, are a matrix of the product's shape.
bool Reducer::fits_product(const std::vector<int>& indices, const params::Product& product) const {
  const params::ParameterAddress& first = registry_.parameters()[indices.front()];
  const std::int64_t begin = first.parameter().place.begin;
  std::int64_t end = begin;
  for (const int index : indices) {
    const params::ParameterAddress& address = registry_.parameters()[index];
    const Parameter& parameter = address.parameter();
    const bool fits = address.segment == first.segment && parameter.trainable >= 0 &&
                      parameter.place.begin == end && parameter.sizes.size() == 2 &&
                      parameter.sizes[1] == product.columns() &&
                      parameter.strides == std::vector<std::int64_t>{product.columns(), 1};
    if (!fits) {
      return false;
    }
    end = parameter.place.end;
  }
  return end - begin == product.rows() * product.columns();
}

bool Reducer::write_product(const std::vector<int>& indices, const params::Product& product) {
  const params::ParameterAddress& first = registry_.parameters()[indices.front()];
  const Segment& segment = *first.segment;
  State& state = states_[segment.id];
  const at::ScalarType fresh =
      options_.plan.shard_gradients ? segment.dtype : accumulator_dtype(segment);
  const at::ScalarType into = state.whole.defined() ? state.whole.scalar_type() : fresh;
  if (!product.goes_into(into) || !fits_product(indices, product)) {
    return false;
  }
  const at::NoGradGuard no_grad;
  std::vector<std::size_t> slots, missing;
  for (const int index : indices) {
    slots.push_back(static_cast<std::size_t>(registry_.parameters()[index].slot));
    begin_writing(segment, registry_.parameters()[index].slot);
  }
  std::copy_if(slots.begin(), slots.end(), std::back_inserter(missing),
               [&](std::size_t slot) { return !state.in_whole[slot]; });
  if (missing.size() < slots.size()) {  // some begin and some go on: those start from zero
    for (const std::size_t slot : missing) {
      views(segment)[slot].zero_();
    }
  }
  const at::Tensor place = state.whole.as_strided(
      {product.rows(), product.columns()}, {product.columns(), 1}, first.parameter().place.begin);
  product.write(place, /*add=*/missing.size() < slots.size());
  for (const std::size_t slot : slots) {
    state.in_whole[slot] = 1;
  }
  return true;
}

// Carries out what write_slot() has collected: a few fused kernels instead of one a parameter.
void Reducer::flush_segment(const Segment& segment) {
  State& state = states_[segment.id];
  if (state.collected_elements == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& target = views(segment);
  std::vector<at::Tensor> set, set_from, add, add_from;
  for (std::size_t slot = 0; slot < target.size(); ++slot) {
    if (state.collected[slot].defined()) {
      (state.in_whole[slot] ? add : set).push_back(target[slot]);
      (state.in_whole[slot] ? add_from : set_from).push_back(std::move(state.collected[slot]));
      state.collected[slot] = at::Tensor();
      state.in_whole[slot] = 1;
    }
  }
  if (!set.empty()) {
    at::_foreach_copy_(set, set_from);
  }
  if (!add.empty()) {
    at::_foreach_add_(add, add_from);
  }
  state.collected_elements = 0;
}

// The parameters' places in the present buffer. Buffers come back, so the views are made once.
const std::vector<at::Tensor>& Reducer::views(const Segment& segment) {
  State& state = states_[segment.id];
  std::vector<at::Tensor>& made = state.views[state.whole.const_data_ptr()];
  if (made.empty()) {
    for (const Parameter& parameter : segment.parameters) {
      made.push_back(
          state.whole.as_strided(parameter.sizes, parameter.strides, parameter.place.begin));
    }
  }
  return made;
}

void Reducer::zero_unwritten(const Segment& segment) {
  State& state = states_[segment.id];
  for (std::size_t slot = 0; slot < segment.parameters.size(); ++slot) {
    if (!state.in_whole[slot]) {
      const params::Range& place = segment.parameters[slot].place;
      state.whole.narrow(0, place.begin, place.size()).zero_();
    }
  }
}

void Reducer::reduce(const params::Unit& unit) {
  if (!options_.plan.shard_gradients) {
    return;
  }
  const at::NoGradGuard no_grad;
  launch();
  for (const auto& segment : unit.segments) {
    if (segment->trainable && segment->layout.numel > 0) {
      reduce_segment(*segment, unit.id);
    }
  }
  touched_ = true;
  finished_ = false;
}

void Reducer::launch() {
  const at::NoGradGuard no_grad;
  for (InFlight& reduction : in_flight_) {
    if (reduction.work) {
      continue;
    }
    State& state = states_[reduction.segment->id];
    reduction.work = channel_.reduce_scatter(
        state.shard, reduction.sent, {.scale = options_.scale, .accumulate = state.shard_holds_sum},
        reduction.segment->name);
    state.shard_holds_sum = true;
  }
}

bool Reducer::holds_unreduced(const params::Unit& unit) const {
  return std::any_of(unit.segments.begin(), unit.segments.end(), [&](const auto& segment) {
    const auto& slots = states_[segment->id].in_whole;
    return states_[segment->id].collected_elements > 0 ||
           std::any_of(slots.begin(), slots.end(), [](std::uint8_t slot) { return slot != 0; });
  });
}

void Reducer::reduce_segment(const Segment& segment, int unit) {
  State& state = states_[segment.id];
  while (in_flight_.size() >= kMaxInFlight ||
         (!in_flight_.empty() &&
          in_flight_elements_ + segment.layout.numel > options_.max_in_flight_elements)) {
    wait_oldest();
  }
  if (!state.whole.defined()) {
    state.whole = pool_.take(segment.layout.numel, segment.dtype);
  }
  flush_segment(segment);
  zero_unwritten(segment);
  hash_.add(comm::Collective::kReduceScatter, unit);
  at::Tensor sent = to_travel(state.whole, segment);
  in_flight_.push_back({std::move(state.whole), nullptr, std::move(sent), &segment});
  in_flight_elements_ += segment.layout.numel;
  state.whole = at::Tensor();
  std::fill(state.in_whole.begin(), state.in_whole.end(), 0);
}

void Reducer::wait_oldest() {
  launch();
  InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  oldest.work->wait();
  in_flight_elements_ -= oldest.buffer.numel();
  pool_.give_back(std::move(oldest.buffer));
}

// Whoever sets `.grad` to None has thrown the gradient away, as in plain PyTorch.
void Reducer::drop_vanished(const Segment& segment) {
  for (std::size_t slot = 0; slot < segment.parameters.size(); ++slot) {
    const Parameter& parameter = segment.parameters[slot];
    if (!parameter.tensor.grad().defined()) {
      leave_to_program(states_[segment.id].shown[slot]);
      states_[segment.id].in_whole[slot] = 0;
      written_[parameter.trainable] = 0;
    }
  }
}

// A tensor that the program has put in place of `.grad` is the sum from then on, as in plain
// PyTorch. All of them at once: they may be each other's.
void Reducer::take_replaced() {
  const auto in_buffer = [this](const at::Tensor& tensor) {
    return std::any_of(states_.begin(), states_.end(), [&](const State& state) {
      return state.whole.defined() && tensor.is_alias_of(state.whole);
    });
  };
  std::vector<std::pair<const params::ParameterAddress*, at::Tensor>> replaced;
  for (const params::ParameterAddress& address : registry_.parameters()) {
    const Parameter& parameter = address.parameter();
    at::Tensor& visible = parameter.tensor.mutable_grad();
    if (!visible.defined()) {
      continue;
    }
    const bool trained = parameter.trainable >= 0;
    if (trained && !same_memory(visible, views(*address.segment)[address.slot])) {
      replaced.emplace_back(
          &address, visible.layout() == at::kStrided ? visible.clone() : visible.to_dense());
    } else if (!trained && visible.layout() == at::kStrided && in_buffer(visible)) {
      visible = visible.clone();
    }
  }
  for (const auto& [address, value] : replaced) {
    const Segment& segment = *address->segment;
    show(segment, address->slot);
    views(segment)[address->slot].copy_(value);
    states_[segment.id].in_whole[address->slot] = 1;
    written_[address->parameter().trainable] = 1;
  }
}

// `.grad` becomes a view of the parameter's place, which holds nothing of the program's any more.
void Reducer::show(const Segment& segment, int slot) {
  at::Tensor& shown = states_[segment.id].shown[slot];
  at::Tensor& visible = segment.parameters[slot].tensor.mutable_grad();
  visible = at::Tensor();
  leave_to_program(shown);
  shown = views(segment)[slot].detach();  // not ours: a program may set its data
  visible = shown;
}

// A gradient that the program has kept stays what it was, in memory of its own.
void Reducer::leave_to_program(at::Tensor& shown) {
  if (shown.defined() && shown.use_count() > 1) {
    shown.set_data(shown.clone());
  }
  shown = at::Tensor();
}

void Reducer::reduce_whole(const Segment& segment, int unit) {
  State& state = states_[segment.id];
  drop_vanished(segment);
  zero_unwritten(segment);
  if (options_.plan.shard_optimizer) {
    hash_.add(comm::Collective::kReduceScatter, unit);
    at::Tensor sent = to_travel(state.whole, segment);
    comm::WorkPtr work =
        channel_.reduce_scatter(state.shard, sent, {.scale = options_.scale}, segment.name);
    in_flight_.push_back({{}, std::move(work), std::move(sent)});
  } else {
    hash_.add(comm::Collective::kAllReduce, unit);
    at::Tensor sent = to_travel(state.whole, segment);
    comm::WorkPtr work = channel_.all_reduce(sent, options_.scale, segment.name);
    if (!sent.is_same(state.whole)) {
      work->wait();
      state.whole.copy_(sent);
    } else {
      in_flight_.push_back({{}, std::move(work), {}});
    }
  }
}

void Reducer::finish() {
  if (finished_) {
    return;
  }
  const at::NoGradGuard no_grad;
  if (!options_.plan.shard_gradients) {
    take_replaced();
    for (auto unit = registry_.units().rbegin(); unit != registry_.units().rend(); ++unit) {
      for (const auto& segment : (*unit)->segments) {
        if (segment->trainable && segment->layout.numel > 0) {
          reduce_whole(*segment, (*unit)->id);
        }
      }
    }
  }
  wait_all();
  for (State& state : states_) {
    if (options_.plan.shard_gradients && state.shard.defined() && !state.shard_holds_sum) {
      state.shard.zero_();
    }
  }
  for (const auto& unit : registry_.units()) {
    for (const auto& segment : unit->segments) {
      if (segment->trainable && segment->layout.numel > 0) {
        average_replicas(*segment, unit->id);
      }
    }
  }
  finished_ = true;
}

void Reducer::wait_all() {
  while (!in_flight_.empty()) {
    if (options_.plan.shard_gradients) {
      wait_oldest();
    } else {
      in_flight_.front().work->wait();
      in_flight_.pop_front();
    }
  }
}

// Once a window: ranks with the same shards have summed other samples. A mean, also of what was a
// mean already, so that reading gradients in mid-window changes nothing.
void Reducer::average_replicas(const Segment& segment, int unit) {
  if (!options_.replicate) {
    return;
  }
  const State& state = states_[segment.id];
  hash_.add(comm::Collective::kAllReduce, unit);
  average_over_replicas(options_.plan.shard_optimizer ? state.shard : state.whole, segment);
}

void Reducer::join(const std::vector<Segment*>& made) {
  const at::NoGradGuard no_grad;
  states_.resize(registry_.segments().size());
  written_.resize(registry_.trainable_count(), 0);
  for (const auto& unit : registry_.units()) {
    for (const auto& segment : unit->segments) {
      if (std::find(made.begin(), made.end(), segment.get()) != made.end()) {
        allocate_segment(*segment);
        write_waiting(*segment);
        if (segment->layout.numel > 0) {
          options_.plan.shard_gradients ? reduce_segment(*segment, unit->id)
                                        : reduce_whole(*segment, unit->id);
          wait_all();
          average_replicas(*segment, unit->id);
        }
      }
    }
  }
  waiting_.clear();
  if (options_.plan.shard_gradients) {  // buffers in the dtype of sums are not needed again
    pool_.clear();
    for (State& state : states_) {
      state.views.clear();
    }
  }
  finished_ = true;
}

// The same buffer on every rank, whether or not gradients waited there. Sums of 16-bit gradients
// must not be rounded again, so it has the accumulators' dtype.
void Reducer::write_waiting(Segment& segment) {
  State& state = states_[segment.id];
  if (!state.whole.defined() && segment.layout.numel > 0) {
    state.whole = pool_.take(segment.layout.numel, accumulator_dtype(segment));
  }
  for (std::size_t index = 0; index < registry_.parameters().size(); ++index) {
    const params::ParameterAddress& address = registry_.parameters()[index];
    if (address.segment != &segment) {
      continue;
    }
    const at::Tensor sum = std::exchange(waiting(static_cast<int>(index)), at::Tensor());
    if (sum.defined()) {
      write_slot(segment, address.slot, sum);
    }
  }
}

void Reducer::average_over_replicas(const at::Tensor& tensor, const Segment& segment) {
  if (!options_.replicate) {
    return;
  }
  const at::Tensor sent = to_travel(tensor, segment);
  options_.replicate->all_reduce(sent, 1.0 / options_.replicate->size(), segment.name)->wait();
  if (!sent.is_same(tensor)) {
    tensor.copy_(sent);
  }
}

at::Tensor Reducer::to_travel(const at::Tensor& gradients, const Segment& segment) const {
  return gradients.to(
      segment.travel.value_or(options_.travel_dtype.value_or(gradients.scalar_type())));
}

void Reducer::drop_visible() {
  for (const params::ParameterAddress& address : registry_.parameters()) {
    const at::Tensor& tensor = address.parameter().tensor;
    if (tensor.grad().defined()) {
      tensor.mutable_grad() = at::Tensor();
    }
  }
}

void Reducer::clear() {
  while (!in_flight_.empty() && options_.plan.shard_gradients) {
    wait_oldest();
  }
  for (const Segment* segment : registry_.segments()) {
    if (!segment->trainable) {
      continue;
    }
    State& state = states_[segment->id];
    std::fill(state.in_whole.begin(), state.in_whole.end(), 0);
    std::fill(state.collected.begin(), state.collected.end(), at::Tensor());
    state.collected_elements = 0;
    state.shard_holds_sum = false;
    if (options_.plan.shard_gradients && state.whole.defined()) {
      pool_.give_back(state.whole);
      state.whole = at::Tensor();
    }
  }
  drop_visible();
  for (State& state : states_) {
    std::for_each(state.shown.begin(), state.shown.end(), leave_to_program);
  }
  waiting_.clear();
  std::fill(written_.begin(), written_.end(), 0);
  touched_ = false;
  finished_ = false;
}

at::Tensor Reducer::shard(const Segment& segment) const { return states_[segment.id].shard; }

at::Tensor Reducer::whole(const Segment& segment) const { return states_[segment.id].whole; }

at::Tensor Reducer::unreduced_copy(const Segment& segment) {
  take_replaced();
  drop_vanished(segment);
  zero_unwritten(segment);
  return states_[segment.id].whole.clone();
}

void Reducer::overwrite(const Segment& segment, int slot, const at::Tensor& value, double factor) {
  const Parameter& parameter = segment.parameters[slot];
  show(segment, slot);
  views(segment)[slot].copy_(value).mul_(factor);
  states_[segment.id].in_whole[slot] = 1;
  note_written(parameter);
}

std::int64_t Reducer::accumulator_bytes() const {
  std::int64_t bytes = 0;
  for (const State& state : states_) {
    const at::Tensor& held = options_.plan.shard_gradients ? state.shard : state.whole;
    bytes += held.defined() ? static_cast<std::int64_t>(held.nbytes()) : 0;
  }
  for (const auto& [parameter, sum] : waiting_) {
    const at::Tensor& held = options_.plan.shard_gradients
                                 ? sum
                                 : registry_.parameters()[parameter].parameter().tensor.grad();
    bytes += held.defined() ? static_cast<std::int64_t>(held.nbytes()) : 0;
  }
  return bytes;
}

}  // namespace shardwise::zero
