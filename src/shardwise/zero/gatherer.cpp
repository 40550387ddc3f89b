#include "shardwise/zero/gatherer.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/zero/autograd_hooks.h"

namespace shardwise::zero {

Gatherer::Gatherer(const params::Registry& registry, comm::Channel& channel, OrderHash& hash,
                   at::Device device, GathererOptions options)
    : registry_(registry),
      channel_(channel),
      hash_(hash),
      options_(options),
      pool_(device),
      entries_(registry.units().size()),
      calls_(registry.units().size(), 0) {}

Gatherer::~Gatherer() {
  for (const auto& unit : registry_.units()) {
    if (unit->sharded && entries_[unit->id].state == State::kReady) {
      for (const auto& segment : unit->segments) {
        segment->storage.release();
      }
    }
  }
}

void Gatherer::begin_pass(bool training) {
  keeping_ = false;
  drop_all();
  std::fill(calls_.begin(), calls_.end(), 0);
  if (order_.begin(training)) {
    log_info("the order of units changed; it was gathered on demand and is recorded anew");
  }
}

void Gatherer::acquire(int unit, bool ahead) {
  if (entries_[unit].in_use) {
    return;
  }
  entries_[unit].in_use = true;
  calls_[unit] += inside_backward() ? 0 : 1;
  const params::Unit& spec = registry_.unit(unit);
  order_.advance(unit);
  hold(unit);
  for (const int used : spec.uses) {
    hold(used);
  }
  if (ahead) {
    prefetch();
  }
  finish(unit);
  for (const int used : spec.uses) {
    finish(used);
  }
}

bool Gatherer::must_gather(int unit) const {
  const std::vector<int>& used = registry_.unit(unit).uses;
  return released(unit) ||
         std::any_of(used.begin(), used.end(), [this](int u) { return released(u); });
}

void Gatherer::release(int unit) {
  if (keeping_ || !entries_[unit].in_use) {
    return;
  }
  entries_[unit].in_use = false;
  let_go(unit);
  for (const int used : registry_.unit(unit).uses) {
    let_go(used);
  }
}

void Gatherer::open(int unit) {
  if (!entries_[unit].exact) {
    drop(unit);  // gathered anew, also under a unit in use
  }
  ++entries_[unit].opened;
  ++open_count_;
  start(unit, /*exact=*/true);
  finish(unit);
}

void Gatherer::close(int unit) {
  --entries_[unit].opened;
  --open_count_;
  if (entries_[unit].holders <= 0) {
    drop(unit);
  }
}

void Gatherer::forget_changes(int unit) {
  for (const auto& segment : registry_.unit(unit).segments) {
    segment->remember_versions();
  }
}

void Gatherer::drop_all() {
  for (std::size_t unit = 0; unit < entries_.size(); ++unit) {
    entries_[unit].in_use = false;
    entries_[unit].holders = 0;
    drop(static_cast<int>(unit));
  }
}

void Gatherer::hold(int unit) {
  ++entries_[unit].holders;
  start(unit);
}

void Gatherer::let_go(int unit) {
  if (--entries_[unit].holders > 0) {
    return;
  }
  const bool kept = (options_.keep_last && needed_next(unit)) ||
                    (live_elements_ <= options_.max_live_elements && needed_soon(unit));
  if (!kept) {
    drop(unit);
  }
}

bool Gatherer::uses(int user, int unit) const {
  const std::vector<int>& used = registry_.unit(user).uses;
  return user == unit || std::find(used.begin(), used.end(), unit) != used.end();
}

// Whether the next unit to be acquired that is not gathered already is `unit` itself, or uses it.
bool Gatherer::needed_next(int unit) const {
  for (const int next : order_.ahead()) {
    if (uses(next, unit)) {
      return true;
    }
    if (must_gather(next)) {
      return false;
    }
  }
  return false;
}

bool Gatherer::needed_soon(int unit) const {
  std::int64_t left = options_.max_reuse_elements;
  for (const int next : order_.ahead()) {
    if (left <= 0) {
      return false;
    }
    if (uses(next, unit)) {
      return true;
    }
    left -= registry_.unit(next).numel();
  }
  return false;
}

void Gatherer::prefetch() {
  if (options_.prefetch_depth <= 0) {
    return;
  }
  int depth = 0;
  // False where there is no more to gather now.
  const auto gather = [&](int unit) {
    if (!registry_.unit(unit).sharded || entries_[unit].in_use) {
      return true;
    }
    if (entries_[unit].state == State::kReleased) {
      if (live_elements_ + registry_.unit(unit).numel() > options_.max_live_elements) {
        return false;
      }
      start(unit);
    }
    return ++depth < options_.prefetch_depth;
  };
  for (const int next : order_.ahead()) {
    const std::vector<int>& used = registry_.unit(next).uses;
    if (!gather(next) || !std::all_of(used.begin(), used.end(), gather)) {
      return;
    }
  }
}

std::vector<int> Gatherer::first() const {
  std::vector<int> found;
  if (options_.prefetch_depth <= 0) {
    return found;
  }
  const auto add = [&](int unit) {
    if (registry_.unit(unit).sharded &&
        std::find(found.begin(), found.end(), unit) == found.end()) {
      found.push_back(unit);
    }
  };
  for (const int next : order_.training()) {
    add(next);
    for (const int used : registry_.unit(next).uses) {
      add(used);
    }
    if (static_cast<int>(found.size()) > options_.prefetch_depth) {
      break;
    }
  }
  return found;
}

void Gatherer::note_ready(const std::vector<int>& units, std::shared_ptr<device::Event> ready) {
  ready_ = std::move(ready);
  ready_shards_.clear();
  for (const int unit : units) {
    for (const auto& segment : registry_.unit(unit).segments) {
      const at::Tensor& shard = segment->shard.data();
      ready_shards_.emplace_back(shard, shard._version());
    }
  }
}

// Null: what was launched on the current stream counts.
device::Event* Gatherer::ready(const params::Segment& segment) const {
  const at::Tensor& shard = segment.shard.data();
  const bool known =
      std::any_of(ready_shards_.begin(), ready_shards_.end(), [&](const auto& entry) {
        return entry.first.is_same(shard) && entry.second == shard._version();
      });
  return known ? ready_.get() : nullptr;
}

void Gatherer::give_back(at::Tensor buffer) {
  ready_.reset();
  pool_.give_back(std::move(buffer));
}

void Gatherer::start(int unit, bool exact) {
  Entry& entry = entries_[unit];
  const params::Unit& spec = registry_.unit(unit);
  if (!spec.sharded || entry.state != State::kReleased) {
    return;
  }
  SW_USER_CHECK(
      UsageError,
      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode),
      "unit ", spec.name,
      " is sharded (ZeRO stage 3), and transforms of torch.func (grad, jvp, vmap, ...) cannot "
      "gather it: call them inside shardwise.zero.GatheredParameters(module.parameters())");
  const at::NoGradGuard no_grad;
  hash_.add(comm::Collective::kAllGather, unit);
  for (const auto& segment : spec.segments) {
    if (segment->layout.numel == 0) {
      continue;
    }
    const at::ScalarType dtype = exact ? segment->dtype : segment->travel.value_or(segment->dtype);
    const std::int64_t allocated = pool_.allocated_bytes();
    at::Tensor buffer = pool_.take(segment->layout.numel, dtype);
    // New memory may have been another tensor's until now, and a cast is launched now.
    const bool as_it_was = pool_.allocated_bytes() == allocated && dtype == segment->dtype;
    entry.exact = entry.exact && dtype == segment->dtype;
    entry.sent.push_back(segment->shard.data().to(dtype));
    entry.work.push_back(channel_.all_gather(buffer, entry.sent.back(), segment->name,
                                             as_it_was ? ready(*segment) : nullptr));
    entry.buffers.push_back(std::move(buffer));
  }
  entry.state = State::kInFlight;
  live_elements_ += spec.numel();
}

void Gatherer::finish(int unit) {
  Entry& entry = entries_[unit];
  if (entry.state != State::kInFlight) {
    return;
  }
  for (const auto& work : entry.work) {
    work->wait();
  }
  entry.work.clear();
  entry.sent.clear();
  const at::NoGradGuard no_grad;
  std::size_t next = 0;
  for (const auto& segment : registry_.unit(unit).segments) {
    if (segment->layout.numel != 0) {
      at::Tensor& buffer = entry.buffers[next++];
      if (buffer.scalar_type() != segment->dtype) {
        at::Tensor travelled =
            std::exchange(buffer, pool_.take(segment->layout.numel, segment->dtype));
        buffer.copy_(travelled);
        give_back(std::move(travelled));
      }
      segment->storage.point_at(buffer);
      segment->remember_versions();
    }
  }
  entry.state = State::kReady;
}

void Gatherer::drop(int unit) {
  Entry& entry = entries_[unit];
  if (entry.state == State::kReleased || entry.opened > 0) {
    return;
  }
  for (const auto& work : entry.work) {
    work->wait();
  }
  entry.work.clear();
  entry.sent.clear();
  entry.exact = true;
  const params::Parameter* changed = nullptr;
  for (const auto& segment : registry_.unit(unit).segments) {
    if (entry.state == State::kReady && changed == nullptr) {
      changed = segment->changed_in_place();
    }
    segment->storage.release();
  }
  for (at::Tensor& buffer : entry.buffers) {
    if (options_.poison && buffer.is_floating_point()) {
      const at::NoGradGuard no_grad;
      buffer.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    give_back(std::move(buffer));
  }
  entry.buffers.clear();
  entry.state = State::kReleased;
  live_elements_ -= registry_.unit(unit).numel();
  SW_USER_CHECK(UsageError, changed == nullptr, "parameter ", changed->name,
                " was changed in place while it was gathered (max_norm of an embedding, clamp_, "
                "...); with ZeRO stage 3 the change would be lost. Change weights inside "
                "GatheredParameters(params, modifier_rank=0), or use a lower stage.");
}

}  // namespace shardwise::zero
