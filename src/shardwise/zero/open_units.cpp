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

// Whether all ranks meet when the unit is closed.
bool is_collective(const params::Unit& unit, int modifier) {
  return !unit.segments.empty() && (unit.sharded || modifier != kReadOnly);
}

at::Device device_of(const params::Unit& unit) {
  return unit.segments.front()->shard.data().device();
}

}  // namespace

OpenUnits::OpenUnits(const params::Registry& registry, Gatherer& gatherer,
                     const comm::ShardChannels& channels, ZeroPlan plan)
    : registry_(registry),
      gatherer_(gatherer),
      channels_(channels),
      plan_(plan),
      levels_(registry.units().size()),
      openings_(registry.units().size()) {}

void OpenUnits::open(int id, int modifier) {
  const params::Unit& unit = registry_.unit(id);
  levels_.at(id).check_modifier(modifier, "unit " + unit.name);
  if (modifier != kReadOnly && levels_[id].any()) {
    const auto objection =
        objection_to(unit, finding_of(levels_[id].change(flats_of(unit)), modifier));
    SW_USER_CHECK(UsageError, !objection, explain(unit, *objection));
  }
  gatherer_.open(id);
  levels_[id].enter(modifier, flats_of(unit));
  Opening opening;
  if (!unit.sharded && modifier == channels_.everybody().rank()) {
    for (const at::Tensor& flat : flats_of(unit)) {
      opening.values.push_back(flat.defined() ? flat.to(at::kCPU, /*non_blocking=*/false,
                                                        /*copy=*/true)
                                              : flat);
    }
  }
  openings_[id].push_back(std::move(opening));
}

void OpenUnits::close(int id, bool discard, ShardedOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const params::Unit& unit = registry_.unit(id);
  AccessLevels& levels = levels_.at(id);
  const Opening opening = std::move(openings_[id].back());
  openings_[id].pop_back();
  const Finding mine = reattach(unit, finding_of(levels.change(flats_of(unit)), levels.modifier()));
  std::optional<Objection> objection;
  if (!discard) {
    objection = objection_to(unit, mine);
  } else if (is_collective(unit, levels.modifier())) {
    agreement_.leave(channels_.everybody(), levels.modifier(), device_of(unit));
  }
  const int modifier = levels.leave();
  const bool shared = !discard && !objection && modifier != kReadOnly;
  if (shared) {
    share(unit, modifier, optimizer);
    levels.accept(flats_of(unit));
  }
  if (discard || objection) {
    put_back(unit, opening);
  }
  if (shared || ((discard || objection) && (unit.sharded || !opening.values.empty()))) {
    gatherer_.forget_changes(id);
  }
  gatherer_.close(id);
  SW_USER_CHECK(UsageError, !objection, explain(unit, *objection));
}

// Tensors that were assigned to `.data` become values of the parameters, where the shapes agree.
// Adds what it finds to `finding`, unless that has found a change already.
Finding OpenUnits::reattach(const params::Unit& unit, Finding finding) const {
  for (std::size_t flat = 0; flat < unit.segments.size(); ++flat) {
    const Segment& segment = *unit.segments[flat];
    for (const params::Parameter& parameter : segment.parameters) {
      if (segment.holds(parameter)) {
        continue;
      }
      const at::Tensor assigned = parameter.tensor.detach();
      const at::Tensor place = segment.view_of(parameter);
      parameter.tensor.set_data(place);
      const bool fits = assigned.sizes() == place.sizes();
      if (finding.changed == 0 && (!fits || finding.modifier == kReadOnly)) {
        finding.reshaped = fits ? 0 : 1;
        finding.changed = fits ? 1 : 0;
        finding.flat = static_cast<std::int64_t>(flat);
        finding.byte =
            parameter.place.begin * static_cast<std::int64_t>(c10::elementSize(segment.dtype));
      }
      if (fits && finding.modifier != kReadOnly) {
        place.copy_(assigned);
      }
    }
  }
  return finding;
}

void OpenUnits::put_back(const params::Unit& unit, const Opening& opening) {
  if (!opening.values.empty()) {
    const std::vector<at::Tensor> flats = flats_of(unit);
    for (std::size_t i = 0; i < flats.size(); ++i) {
      if (flats[i].defined()) {
        flats[i].copy_(opening.values[i]);
      }
    }
  }
}

// What forbids to take changes of the unit over, or to allow them; the same on all ranks.
std::optional<Objection> OpenUnits::objection_to(const params::Unit& unit, Finding mine) {
  if (is_collective(unit, mine.modifier)) {
    return agreement_.objection(channels_.everybody(), mine, device_of(unit));
  }
  return mine.changed == 0 && mine.reshaped == 0
             ? std::nullopt
             : std::optional(Objection{channels_.everybody().rank(), mine, mine.modifier});
}

std::string OpenUnits::explain(const params::Unit& unit, const Objection& objection) const {
  std::string name = "unit " + unit.name;
  std::string consequence;
  if (objection.finding.changed != 0 || objection.finding.reshaped != 0) {
    const Segment& segment = *unit.segments[objection.finding.flat];
    const auto element =
        objection.finding.byte / static_cast<std::int64_t>(c10::elementSize(segment.dtype));
    for (const params::Parameter& parameter : segment.parameters) {
      if (element >= parameter.place.begin && element < parameter.place.end) {
        name = "parameter " + parameter.name;
      }
    }
    consequence = segment.sharded ? "the change is lost"
                                  : "the other ranks, and fp32 masters, do not know of it";
  }
  return in_words(objection, name, consequence);
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
