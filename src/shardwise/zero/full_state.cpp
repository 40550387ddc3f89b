#include "shardwise/zero/full_state.h"

#include <ATen/ATen.h>

#include "shardwise/base/check.h"

namespace shardwise::zero {

using params::Parameter;
using params::Segment;

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
  if (optimizer == nullptr || !segment.trainable) {
    return {};
  }
  const params::ShardHandle handle =
      kind == "master" ? optimizer->master(segment) : optimizer->state(segment, kind);
  if (!handle.data().defined()) {
    return {};
  }
  const at::Tensor data = handle.data().to(segment.shard.data().device());
  return cut(whole_segment(segment, data), address.parameter());
}

at::Tensor FullState::assemble(int index, const at::Tensor& piece) {
  const at::NoGradGuard no_grad;
  if (!plan_.shard_optimizer) {
    return piece.defined() ? piece.clone() : piece;
  }
  const params::ParameterAddress& address = registry_.parameters().at(index);
  const Segment& segment = *address.segment;
  const auto options = segment.shard.data().options().dtype(at::kFloat);
  const at::Tensor here = at::full({1}, piece.defined() ? 1.0 : 0.0, options);
  const at::Tensor anywhere = at::empty({channels_.gather->size()}, options);
  channels_.gather->all_gather(anywhere, here, segment.name)->wait();
  if (anywhere.sum().item<float>() == 0) {
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
  channels_.reduce->all_reduce(copy, reducer.scale(), segment.name)->wait();
  reducer.average_over_replicas(copy, segment.name);
  return cut(copy, address.parameter());
}

void FullState::set(int index, const at::Tensor& value, ShardedOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const params::ParameterAddress& address = registry_.parameters().at(index);
  Segment& segment = *address.segment;
  const Parameter& parameter = address.parameter();
  SW_USER_CHECK(UsageError, value.sizes() == at::IntArrayRef(parameter.sizes), "parameter ",
                parameter.name, " has shape ", at::IntArrayRef(parameter.sizes),
                " but the new value has shape ", value.sizes());
  const auto write = [&](const at::Tensor& part, const params::Range& range) {
    // `part` holds the elements `range` of the segment.
    const params::Range mine = params::intersect(parameter.place, range);
    if (mine.size() == 0) {
      return;
    }
    const at::Tensor flat = at::empty({parameter.place.size()}, part.options());
    flat.as_strided(parameter.sizes, parameter.strides, 0).copy_(value);
    part.narrow(0, mine.begin - range.begin, mine.size())
        .copy_(flat.narrow(0, mine.begin - parameter.place.begin, mine.size()));
  };
  const params::Range shard = segment.layout.shard_of(channels_.gather->rank());
  const params::Range everything{0, segment.layout.numel};
  write(segment.sharded ? segment.shard.data() : segment.full,
        segment.sharded ? shard : everything);
  if (!segment.sharded) {
    segment.remember_versions();
  }
  if (optimizer != nullptr && segment.trainable && optimizer->has_own_master(segment)) {
    write(optimizer->master(segment).data(), plan_.shard_optimizer ? shard : everything);
  }
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
