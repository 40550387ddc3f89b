#include "shardwise/zero/full_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/zero/record_exchange.h"

namespace shardwise::zero {

using params::Parameter;
using params::Range;
using params::Segment;

namespace {

void check_fits(const Parameter& parameter, at::IntArrayRef sizes, const at::Tensor& value,
                const char* what) {
  SW_USER_CHECK(UsageError, value.sizes() == sizes, "parameter ", parameter.name, ": ", what,
                " has shape ", sizes, " but the new value has shape ", value.sizes());
  SW_USER_CHECK(UsageError, value.is_floating_point(), "parameter ", parameter.name, ": ", what,
                " is floating point but the new value is ", value.scalar_type(),
                "; convert it with .float()");
}

// `part` holds the elements `range` of a segment; those of the parameter among them become `value`
// (the parameter's shape).
void write(const at::Tensor& part, const Range& range, const Parameter& parameter,
           const at::Tensor& value) {
  const Range mine = params::intersect(parameter.place, range);
  if (mine.size() == 0) {
    return;
  }
  const at::Tensor flat = at::empty({parameter.place.size()}, part.options());
  flat.as_strided(parameter.sizes, parameter.strides, 0).copy_(value);
  part.narrow(0, mine.begin - range.begin, mine.size())
      .copy_(flat.narrow(0, mine.begin - parameter.place.begin, mine.size()));
}

params::ShardHandle handle_of(const Segment& segment, const std::string& kind,
                              const ShardedOptimizer* optimizer) {
  if (optimizer == nullptr || !segment.trainable) {
    return {};
  }
  return kind == "master" ? optimizer->master(segment) : optimizer->state(segment, kind);
}

}  // namespace

FullState::FullState(const params::Registry& registry, const comm::ShardChannels& channels,
                     ZeroPlan plan)
    : registry_(registry), channels_(channels), plan_(plan) {}

at::Tensor FullState::whole_segment(const Segment& segment, const at::Tensor& shard) {
  if (shard.numel() == segment.layout.numel) {
    return shard;
  }
  at::Tensor full = at::empty({segment.layout.numel}, shard.options());
  channels_.gather->all_gather(full, shard, segment.name)->wait();
  return full;
}

at::Tensor FullState::cut(const at::Tensor& flat, const Parameter& parameter) const {
  return flat.as_strided(parameter.sizes, parameter.strides, parameter.place.begin).clone();
}

at::Tensor FullState::get(int index, const std::string& kind, const ShardedOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const Segment& segment = *address.segment;
  if (kind == "parameter") {
    const at::Tensor& source = segment.sharded ? segment.shard.data() : segment.full;
    return cut(whole_segment(segment, source), address.parameter());
  }
  const params::ShardHandle handle = handle_of(segment, kind, optimizer);
  if (!handle.data().defined()) {
    return {};
  }
  const at::Tensor data = handle.data().to(segment.shard.data().device());
  return cut(whole_segment(segment, data), address.parameter()).to(at::kFloat);
}

at::Tensor FullState::assemble(int index, const at::Tensor& piece) {
  const at::NoGradGuard no_grad;
  if (!plan_.shard_optimizer) {
    return piece.defined() ? piece.clone() : piece;
  }
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const Segment& segment = *address.segment;
  const auto options = segment.shard.data().options().dtype(at::kFloat);
  const std::vector<std::uint8_t> held =
      RecordExchange<std::uint8_t>(*channels_.gather, piece.defined() ? 1 : 0, options.device(),
                                   segment.name)
          .read();
  if (std::count(held.begin(), held.end(), 0) == static_cast<std::ptrdiff_t>(held.size())) {
    return {};
  }
  const at::Tensor shard = at::zeros({segment.layout.shard_numel}, options);
  if (piece.defined()) {
    const params::Range range = segment.layout.shard_of(channels_.gather->rank());
    const params::Range mine = params::intersect(address.parameter().place, range);
    shard.narrow(0, mine.begin - range.begin, mine.size()).copy_(piece);
  }
  return cut(whole_segment(segment, shard), address.parameter());
}

at::Tensor FullState::gradient(int index, Reducer& reducer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const Segment& segment = *address.segment;
  if (!segment.trainable || reducer.empty()) {
    return {};
  }
  if (plan_.shard_gradients) {
    reducer.finish();
    return cut(whole_segment(segment, reducer.shard(segment)), address.parameter());
  }
  // The accumulator still waits for its reduction at the boundary: reduce a copy.
  const at::Tensor copy = reducer.unreduced_copy(segment);
  const at::Tensor sent = reducer.to_travel(copy, segment);
  channels_.reduce->all_reduce(sent, reducer.scale(), segment.name)->wait();
  if (!sent.is_same(copy)) {
    copy.copy_(sent);
  }
  reducer.average_over_replicas(copy, segment);
  return cut(copy, address.parameter());
}

void FullState::set(int index, const at::Tensor& value, ShardedOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  Segment& segment = *address.segment;
  const Parameter& parameter = address.parameter();
  check_fits(parameter, parameter.sizes, value, "it");
  if (segment.sharded) {
    write(segment.shard.data(), shard_of(segment), parameter, value);
  } else {
    write(segment.full, {0, segment.layout.numel}, parameter, value);
    segment.remember_versions();
  }
  if (optimizer != nullptr && segment.trainable && optimizer->has_own_master(segment)) {
    write(optimizer->master(segment).data(), update_range(segment), parameter, value);
  }
}

bool FullState::set_state(int index, const std::string& kind, const at::Tensor& value,
                          ShardedOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const params::ShardHandle handle = handle_of(*address.segment, kind, optimizer);
  if (!handle.data().defined()) {
    return false;
  }
  if (kind == "master") {
    set(index, value, optimizer);
    return true;
  }
  check_fits(address.parameter(), address.parameter().sizes, value, kind.c_str());
  write(handle.data(), update_range(*address.segment), address.parameter(), value);
  return true;
}

bool FullState::set_gradient(int index, const at::Tensor& value, Reducer& reducer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const Segment& segment = *address.segment;
  const Parameter& parameter = address.parameter();
  check_fits(parameter, parameter.sizes, value, "its gradient");
  if (!segment.trainable || reducer.empty()) {
    return false;
  }
  if (plan_.shard_gradients) {
    reducer.finish();
    write(reducer.shard(segment), shard_of(segment), parameter, value);
    reducer.note_written(parameter);
  } else {
    // Every rank's share of a sum that the boundary will take.
    reducer.overwrite(segment, address.slot, value,
                      1.0 / (reducer.scale() * channels_.reduce->size()));
  }
  return true;
}

at::Tensor FullState::local(int index, const std::string& kind, const ShardedOptimizer* optimizer,
                            Reducer& reducer) {
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const Segment& segment = *address.segment;
  const auto own = [&](const at::Tensor& part, const Range& range) {
    const Range mine = params::intersect(address.parameter().place, range);
    return part.narrow(0, mine.size() == 0 ? 0 : mine.begin - range.begin, mine.size());
  };
  if (kind != "gradient") {
    const params::ShardHandle handle = handle_of(segment, kind, optimizer);
    return handle.data().defined() ? own(handle.data(), update_range(segment)) : at::Tensor();
  }
  if (!segment.trainable || reducer.empty()) {
    return {};
  }
  SW_USER_CHECK(UsageError, plan_.shard_gradients, "the gradient of ", address.parameter().name,
                " is in no rank's hands alone: ZeRO stages 0 and 1 reduce gradients in step(). Use "
                "safe_get_full_grad and safe_set_full_grad, or stage 2 or 3.");
  reducer.finish();
  return own(reducer.shard(segment), shard_of(segment));
}

bool FullState::set_local(int index, const std::string& kind, const at::Tensor& value,
                          const ShardedOptimizer* optimizer, Reducer& reducer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  Segment& segment = *address.segment;
  const Parameter& parameter = address.parameter();
  const at::Tensor part = local(index, kind, optimizer, reducer);
  if (!part.defined()) {
    return false;
  }
  check_fits(parameter, part.sizes(), value, "this rank's part of it");
  part.copy_(value);
  if (kind == "gradient") {
    reducer.note_written(parameter);
  }
  if (kind != "master") {
    return true;
  }
  const Range range = update_range(segment);
  const Range mine = params::intersect(parameter.place, range);
  const at::Tensor& held = plan_.shard_optimizer ? segment.shard.data() : segment.full;
  if (optimizer->has_own_master(segment) && mine.size() > 0) {
    held.narrow(0, mine.begin - range.begin, mine.size()).copy_(part);
  }
  if (!segment.sharded) {
    if (plan_.shard_optimizer) {
      channels_.gather->all_gather(segment.full, segment.shard.data(), segment.name)->wait();
    }
    segment.remember_versions();
  }
  return true;
}

void FullState::hand_back(params::Unit& unit) {
  const at::NoGradGuard no_grad;
  for (const auto& segment : unit.segments) {
    if (segment->sharded) {
      params::Registry::hand_back(*segment, whole_segment(*segment, segment->shard.data()));
    }
  }
}

}  // namespace shardwise::zero
