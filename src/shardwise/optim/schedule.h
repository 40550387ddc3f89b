// Learning-rate schedules under DeepSpeed's names, as pure functions of one number.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::optim {

// What a schedule sets in the parameter groups.
struct ScheduleValues {
  std::vector<double> lr;  // one for each group
  std::vector<double>
      momenta;  // first beta of each group; empty: the schedule leaves the betas alone
};

// OneCycle sets the second beta to this, whatever it was.
inline constexpr double kOneCycleSecondBeta = 0.99;

// Note [Iterations of a schedule]
// A schedule stands at an iteration, which is all its state (DeepSpeed: last_batch_iteration): -1
// when it is made, one more for each step that changed the weights. So the first two steps of a
// warm-up run with its first learning rate, as with DeepSpeed: at -1 and at 0.
class Schedule {
 public:
  virtual ~Schedule() = default;
  // `base_lr`: the groups' learning rates when the schedule was made. -1 <= iteration < 2^62.
  // Throws ConfigError where a setting has values for another number of groups. Thread-safe.
  virtual ScheduleValues values(std::int64_t iteration,
                                const std::vector<double>& base_lr) const = 0;
};

// The schedule that a validated configuration names; null when it names none.
std::unique_ptr<Schedule> make_schedule(const config::SchedulerConfig& config);

}  // namespace shardwise::optim
