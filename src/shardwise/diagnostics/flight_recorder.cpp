#include "shardwise/diagnostics/flight_recorder.h"

#include <algorithm>
#include <mutex>

#include "shardwise/base/check.h"

namespace shardwise::diagnostics {

// Channels are used by the training thread and by autograd's; reports come from a third.
struct FlightRecorder::State {
  mutable std::mutex mutex;
  std::deque<std::string> under_way;
  std::string last_finished;
  std::int64_t count = 0;
};

namespace {

std::string describe(const comm::CollectiveEvent& event) {
  return concat(comm::collective_name(event.collective), " for ", event.who);
}

}  // namespace

FlightRecorder::FlightRecorder(const std::vector<comm::Channel*>& channels)
    : state_(std::make_shared<State>()) {
  for (comm::Channel* channel : channels) {
    hooks_.push_back(channel->add_hook({
        .before_launch =
            [state = state_](const comm::CollectiveEvent& event) {
              const std::lock_guard lock(state->mutex);
              state->under_way.push_back(describe(event));
              ++state->count;
            },
        .after_wait =
            [state = state_](const comm::CollectiveEvent& event) {
              const std::lock_guard lock(state->mutex);
              state->last_finished = describe(event);
              const auto at =
                  std::find(state->under_way.begin(), state->under_way.end(), state->last_finished);
              if (at != state->under_way.end()) {
                state->under_way.erase(at);
              }
            },
    }));
  }
}

FlightRecorder::~FlightRecorder() = default;

std::vector<std::string> FlightRecorder::under_way() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->under_way.begin(), state_->under_way.end()};
}

std::string FlightRecorder::last_finished() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_finished;
}

std::int64_t FlightRecorder::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->count;
}

}  // namespace shardwise::diagnostics
