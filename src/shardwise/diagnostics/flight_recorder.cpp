#include "shardwise/diagnostics/flight_recorder.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::diagnostics {
namespace {

// A collective that was begun and is not known to have ended.
struct Entry {
  std::string what;
  bool waited = false;
  comm::Finished finished;  // once waited for; null: it has ended

  bool ended() const { return waited && (finished == nullptr || finished()); }
};

std::string describe(const comm::CollectiveEvent& event) {
  return concat(comm::collective_name(event.collective), " for ", event.who);
}

}  // namespace

// Channels are used by the training thread and by autograd's; reports come from a third.
struct FlightRecorder::State {
  mutable std::mutex mutex;
  std::deque<Entry> entries;
  std::string last_finished;
  std::int64_t count = 0;

  void begin(const comm::CollectiveEvent& event) {
    const std::lock_guard lock(mutex);
    // Only up to the first that still runs, which costs a launch one look at the device.
    while (!entries.empty() && entries.front().ended()) {
      last_finished = std::move(entries.front().what);
      entries.pop_front();
    }
    entries.push_back({describe(event), false, nullptr});
    ++count;
  }

  void waited(const comm::CollectiveEvent& event, const comm::Finished& finished) {
    const std::lock_guard lock(mutex);
    const auto at = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return !entry.waited && entry.what == describe(event);
    });
    if (at == entries.end()) {
      return;
    }
    at->waited = true;
    at->finished = finished;
    if (finished == nullptr) {
      last_finished = std::move(at->what);
      entries.erase(at);
    }
  }

  // Drops what has ended.
  void look() {
    for (auto entry = entries.begin(); entry != entries.end();) {
      if (entry->ended()) {
        last_finished = std::move(entry->what);
        entry = entries.erase(entry);
      } else {
        ++entry;
      }
    }
  }
};

FlightRecorder::FlightRecorder(const std::vector<comm::Channel*>& channels)
    : state_(std::make_shared<State>()) {
  for (comm::Channel* channel : channels) {
    hooks_.push_back(channel->add_hook({
        .before_launch = [state =
                              state_](const comm::CollectiveEvent& event) { state->begin(event); },
        .after_wait = [state = state_](
                          const comm::CollectiveEvent& event,
                          const comm::Finished& finished) { state->waited(event, finished); },
    }));
  }
}

FlightRecorder::~FlightRecorder() = default;

std::vector<std::string> FlightRecorder::under_way() const {
  const std::lock_guard lock(state_->mutex);
  state_->look();
  std::vector<std::string> names;
  for (const Entry& entry : state_->entries) {
    names.push_back(entry.what);
  }
  return names;
}

std::string FlightRecorder::last_finished() const {
  const std::lock_guard lock(state_->mutex);
  state_->look();
  return state_->last_finished;
}

std::int64_t FlightRecorder::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->count;
}

}  // namespace shardwise::diagnostics
