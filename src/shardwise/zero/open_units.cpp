#include "shardwise/zero/open_units.h"

#include <ATen/ATen.h>

#include "shardwise/base/check.h"

namespace shardwise::zero {
namespace {

using params::Segment;

std::vector<at::Tensor> flats_of(const params::Unit& unit) {
  std::vector<at::Tensor> flats;
  for (const auto& segment : unit.segments) {
    const auto numel = segment->layout.numel;
    flats.push_back(numel == 0 ? at::Tensor() : segment->storage.view({numel}, {1}, 0));
  }
  return flats;
}

// New values where the parameter is no longer the rounded master; elsewhere the master keeps the
// digits that a 16-bit parameter has not.
void follow(const at::Tensor& master, const at::Tensor& values) {
  const at::Tensor parameter = values.to(master.device());
  const at::Tensor same = at::eq(master.to(parameter.scalar_type()), parameter);
  master.copy_(at::where(same, master, parameter.to(master.scalar_type())));
}

}  // namespace

OpenUnits::OpenUnits(const params::Registry& registry, Gatherer& gatherer,
                     const comm::ShardChannels& channels, ZeroPlan plan)
    : registry_(registry),
      gatherer_(gatherer),
      channels_(channels),
      plan_(plan),
      levels_(registry.units().size()) {}

void OpenUnits::open(int id, int modifier) {
  const params::Unit& unit = registry_.unit(id);
  levels_.at(id).check_modifier(modifier, "unit " + unit.name);
  if (modifier != kReadOnly) {
    const std::string complaint = complaint_about(unit);
    SW_USER_CHECK(UsageError, complaint.empty(), complaint);
  }
  gatherer_.open(id);
  levels_[id].enter(modifier, flats_of(unit));
}

void OpenUnits::close(int id, bool discard, ShardedOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const params::Unit& unit = registry_.unit(id);
  AccessLevels& levels = levels_.at(id);
  const std::string complaint = discard ? "" : complaint_about(unit);
  const int modifier = levels.leave();
  discard = discard || !complaint.empty();
  if (!discard && modifier != kReadOnly) {
    share(unit, modifier, optimizer);
    levels.accept(flats_of(unit));
    gatherer_.forget_changes(id);
  }
  if (discard && unit.sharded) {
    gatherer_.forget_changes(id);
  }
  gatherer_.close(id);
  SW_USER_CHECK(UsageError, complaint.empty(), complaint);
}

// What to say about a change that nobody was named for; empty if there is none.
std::string OpenUnits::complaint_about(const params::Unit& unit) const {
  const auto change = levels_[unit.id].change(flats_of(unit));
  if (!change) {
    return "";
  }
  const Segment& segment = *unit.segments[change->flat];
  const auto element = change->byte / static_cast<std::int64_t>(c10::elementSize(segment.dtype));
  std::string name = "of unit " + unit.name;
  for (const params::Parameter& parameter : segment.parameters) {
    if (element >= parameter.place.begin && element < parameter.place.end) {
      name = parameter.name;
    }
  }
  return concat("parameter ", name,
                " was changed inside GatheredParameters without modifier_rank; ",
                segment.sharded ? "the change is lost"
                                : "the other ranks, and fp32 masters, do not know of it",
                ". Say whose changes count: GatheredParameters(params, modifier_rank=0), and make "
                "them on that rank.");
}

void OpenUnits::share(const params::Unit& unit, int modifier, ShardedOptimizer* optimizer) {
  for (const auto& segment : unit.segments) {
    if (segment->layout.numel == 0) {
      continue;
    }
    const at::Tensor flat = segment->storage.view({segment->layout.numel}, {1}, 0);
    channels_.everybody().broadcast(flat, modifier, segment->name)->wait();
    const params::Range mine = segment->layout.shard_of(channels_.gather->rank());
    if (segment->sharded) {
      segment->shard.data().copy_(flat.narrow(0, mine.begin, mine.size()));
    }
    if (optimizer != nullptr && segment->trainable && optimizer->has_own_master(*segment)) {
      const at::Tensor& master = optimizer->master(*segment).data();
      follow(master, plan_.shard_optimizer ? flat.narrow(0, mine.begin, mine.size()) : flat);
    }
  }
}

}  // namespace shardwise::zero
