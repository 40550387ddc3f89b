#include "shardwise/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "shardwise/base/check.h"

namespace shardwise::optim {
namespace {

using config::SchedulerParams;

// One value for each group, from a setting with one for all or one for each.
std::vector<double> for_groups(const std::vector<double>& setting, std::size_t groups,
                               const char* name) {
  if (setting.size() == 1) {
    return std::vector<double>(groups, setting.front());
  }
  SW_USER_CHECK(ConfigError, setting.size() == groups, "scheduler.params.", name, ": ",
                setting.size(), " values for ", groups,
                " parameter groups; give one number, or one for each group");
  return setting;
}

// The rising part that all warm-ups share: 0 at iteration 0, 1 at its end.
class WarmUp {
 public:
  explicit WarmUp(const SchedulerParams& params)
      // The logarithm of 1 is 0, so one step has no logarithmic form.
      : steps_(std::max<std::int64_t>(2, params.warmup_num_steps)),
        logarithmic_(params.warmup_type == "log") {}

  std::int64_t steps() const { return steps_; }
  bool active(std::int64_t iteration) const { return iteration < steps_; }
  double share(std::int64_t iteration) const {
    const auto at = static_cast<double>(iteration);
    const auto end = static_cast<double>(steps_);
    return logarithmic_ ? std::log(at + 1) / std::log(end) : at / end;
  }

 private:
  std::int64_t steps_;
  bool logarithmic_;
};

// WarmupLR, and WarmupDecayLR with its linear descent to 0 at total_num_steps.
class WarmupSchedule : public Schedule {
 public:
  WarmupSchedule(const SchedulerParams& params, bool decays)
      : params_(params), warm_up_(params), decays_(decays) {}

  ScheduleValues values(std::int64_t iteration, const std::vector<double>& base_lr) const override {
    const std::size_t groups = base_lr.size();
    const std::vector<double>& most = params_.warmup_max_lr;
    ScheduleValues result{for_groups(params_.warmup_min_lr, groups, "warmup_min_lr"), {}};
    const std::vector<double> high =
        most.empty() ? base_lr : for_groups(most, groups, "warmup_max_lr");
    const double share = iteration < 0 ? 0 : share_at(iteration);
    for (std::size_t group = 0; group < groups; ++group) {
      result.lr[group] += (high[group] - result.lr[group]) * share;
    }
    return result;
  }

 private:
  double share_at(std::int64_t iteration) const {
    if (warm_up_.active(iteration)) {
      return warm_up_.share(iteration);
    }
    if (!decays_) {
      return 1;
    }
    const std::int64_t total = params_.total_num_steps;
    const auto whole = static_cast<double>(std::max<std::int64_t>(1, total - warm_up_.steps()));
    return std::max(0.0, static_cast<double>(total - iteration) / whole);
  }

  SchedulerParams params_;
  WarmUp warm_up_;
  bool decays_;
};

// WarmupCosineLR: shares of the optimizer's own rates.
class WarmupCosineSchedule : public Schedule {
 public:
  explicit WarmupCosineSchedule(const SchedulerParams& params)
      : params_(params), warm_up_(params) {}

  ScheduleValues values(std::int64_t iteration, const std::vector<double>& base_lr) const override {
    // DeepSpeed starts at 0, not at warmup_min_ratio.
    const double share = iteration < 0 ? 0 : share_at(iteration);
    ScheduleValues result{base_lr, {}};
    for (double& lr : result.lr) {
      lr *= share;
    }
    return result;
  }

 private:
  double share_at(std::int64_t iteration) const {
    if (warm_up_.active(iteration)) {
      const double low = params_.warmup_min_ratio;
      return low + warm_up_.share(iteration) * (1 - low);
    }
    const std::int64_t whole =
        std::max<std::int64_t>(1, params_.total_num_steps - warm_up_.steps());
    const double progress = std::min(
        1.0, static_cast<double>(iteration - warm_up_.steps() + 1) / static_cast<double>(whole));
    const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
    return std::max(0.0, params_.cos_min_ratio + (1 - params_.cos_min_ratio) * cosine);
  }

  SchedulerParams params_;
  WarmUp warm_up_;
};

// LRRangeTest (Smith, "A disciplined approach to neural network hyper-parameters", 2018).
class RangeTestSchedule : public Schedule {
 public:
  explicit RangeTestSchedule(const SchedulerParams& params) : params_(params) {}

  ScheduleValues values(std::int64_t iteration, const std::vector<double>& base_lr) const override {
    double intervals =
        static_cast<double>(iteration + 1) / static_cast<double>(params_.lr_range_test_step_size);
    if (params_.lr_range_test_staircase) {
      intervals = std::floor(intervals);
    }
    ScheduleValues result{
        for_groups(params_.lr_range_test_min_lr, base_lr.size(), "lr_range_test_min_lr"), {}};
    for (double& lr : result.lr) {
      lr *= 1 + params_.lr_range_test_step_rate * intervals;
    }
    return result;
  }

 private:
  SchedulerParams params_;
};

// OneCycle (same paper): up and down once, then a decay.
class OneCycleSchedule : public Schedule {
 public:
  explicit OneCycleSchedule(const SchedulerParams& params)
      : params_(params),
        up_(params.cycle_first_step_size),
        down_(params.cycle_second_step_size > 0 ? params.cycle_second_step_size : up_) {}

  ScheduleValues values(std::int64_t iteration, const std::vector<double>& base_lr) const override {
    ScheduleValues result{for_groups(params_.cycle_min_lr, base_lr.size(), "cycle_min_lr"), {}};
    const std::vector<double> high =
        for_groups(params_.cycle_max_lr, base_lr.size(), "cycle_max_lr");
    const bool cycling = iteration < up_ + down_;
    const double height = cycling && iteration >= 0 ? height_at(iteration + 1) : 0;
    const double decay = cycling ? 1 : 1 + decays(iteration) * params_.decay_lr_rate;
    for (std::size_t group = 0; group < base_lr.size(); ++group) {
      const double low = result.lr[group];
      result.lr[group] = (low + (high[group] - low) * height) / decay;
    }
    if (params_.cycle_momentum) {
      result.momenta.assign(base_lr.size(), momentum_at(iteration));
    }
    return result;
  }

 private:
  // 0 at the ends of the cycle, 1 at its peak. `position` is counted from 1, so the last step of a
  // cycle begins a second one.
  double height_at(std::int64_t position) const {
    const std::int64_t in_cycle = position % (up_ + down_);
    const bool rising = in_cycle <= up_;
    const std::int64_t way = rising ? in_cycle : up_ + down_ - in_cycle;
    const auto length = static_cast<double>(rising ? up_ : down_);
    const std::int64_t second = params_.cycle_second_stair_count;
    const std::int64_t stairs = rising || second < 0 ? params_.cycle_first_stair_count : second;
    if (stairs == 0) {
      return static_cast<double>(way) / length;
    }
    const auto count = static_cast<double>(stairs);
    return std::floor(static_cast<double>(way) * count / length) / count;
  }

  // How often the decay has been applied after the cycle.
  double decays(std::int64_t iteration) const {
    return params_.decay_step_size == 0 ? 0
                                        : static_cast<double>(iteration - (up_ + down_) + 1) /
                                              static_cast<double>(params_.decay_step_size);
  }

  double momentum_at(std::int64_t iteration) const {
    const double low = params_.cycle_min_mom;
    const double high = params_.cycle_max_mom;
    if (iteration < 0) {
      return low;  // as DeepSpeed makes it, although the rate is lowest
    }
    if (iteration < up_ + down_) {
      return high - (high - low) * height_at(iteration + 1);
    }
    return high * (1 + params_.decay_mom_rate * decays(iteration));
  }

  SchedulerParams params_;
  std::int64_t up_;
  std::int64_t down_;
};

}  // namespace

std::unique_ptr<Schedule> make_schedule(const config::SchedulerConfig& config) {
  const std::string& type = config.type;
  if (type.empty()) {
    return nullptr;
  }
  if (type == "WarmupLR" || type == "WarmupDecayLR") {
    return std::make_unique<WarmupSchedule>(config.params, type == "WarmupDecayLR");
  }
  if (type == "WarmupCosineLR") {
    return std::make_unique<WarmupCosineSchedule>(config.params);
  }
  if (type == "OneCycle") {
    return std::make_unique<OneCycleSchedule>(config.params);
  }
  SW_CHECK(type == "LRRangeTest", "no schedule ", type);
  return std::make_unique<RangeTestSchedule>(config.params);
}

}  // namespace shardwise::optim
