// The learning-rate schedule.
#include "shardwise/config/field.h"
#include "shardwise/config/scheduler_types.h"

namespace shardwise::config {
namespace {

constexpr const char* kPrefix = "scheduler.params.";
// Sums of a few of these fit into 64 bits.
constexpr double kMostSteps = 1e15;

void add_range_test_params(FieldList& list) {
  const std::string p = kPrefix;
  list.acts(p + "lr_range_test_min_lr", number_or_list(0).min(0),
            "LRRangeTest: first learning rate.", SW_MEMBER(scheduler.params.lr_range_test_min_lr));
  list.acts(p + "lr_range_test_step_size", integer(0).min(1), "LRRangeTest: steps of an interval.",
            SW_MEMBER(scheduler.params.lr_range_test_step_size));
  list.acts(p + "lr_range_test_step_rate", number(0).min(0),
            "LRRangeTest: growth in an interval, in first rates.",
            SW_MEMBER(scheduler.params.lr_range_test_step_rate));
  list.acts(p + "lr_range_test_staircase", boolean(false),
            "LRRangeTest: grow at the end of an interval only.",
            SW_MEMBER(scheduler.params.lr_range_test_staircase));
}

void add_cycle_rate_params(FieldList& list) {
  const std::string p = kPrefix;
  list.acts(p + "cycle_min_lr", number_or_list(0).required().min(0),
            "OneCycle: smallest learning rate. Required by it.",
            SW_MEMBER(scheduler.params.cycle_min_lr));
  list.acts(p + "cycle_max_lr", number_or_list(0).required().min(0),
            "OneCycle: largest learning rate. Required by it.",
            SW_MEMBER(scheduler.params.cycle_max_lr));
  list.acts(p + "decay_lr_rate", number(0).min(0),
            "OneCycle: decay of the learning rate after the cycle.",
            SW_MEMBER(scheduler.params.decay_lr_rate));
  list.acts(p + "cycle_first_step_size", integer(0).min(1).max(kMostSteps),
            "OneCycle: steps upwards.", SW_MEMBER(scheduler.params.cycle_first_step_size));
  list.acts(p + "cycle_second_step_size", integer(0).or_null().min(1).max(kMostSteps),
            "OneCycle: steps downwards; null: as many as upwards.",
            SW_MEMBER(scheduler.params.cycle_second_step_size));
  list.acts(p + "cycle_first_stair_count", integer(0).min(0),
            "OneCycle: stairs upwards; 0: a straight line.",
            SW_MEMBER(scheduler.params.cycle_first_stair_count));
  list.acts(p + "cycle_second_stair_count", integer(0).or_null().min(0),
            "OneCycle: stairs downwards; null: as many as upwards.",
            SW_MEMBER(scheduler.params.cycle_second_stair_count));
  list.acts(p + "decay_step_size", integer(0).min(0),
            "OneCycle: steps of one decay after the cycle; 0: no decay.",
            SW_MEMBER(scheduler.params.decay_step_size));
}

void add_cycle_momentum_params(FieldList& list) {
  const std::string p = kPrefix;
  list.acts(p + "cycle_momentum", boolean(true),
            "OneCycle: move the first beta of Adam against the learning rate. SGD keeps its "
            "momentum.",
            SW_MEMBER(scheduler.params.cycle_momentum));
  list.acts(p + "cycle_min_mom", number(0).min(0).below(1), "OneCycle: smallest first beta.",
            SW_MEMBER(scheduler.params.cycle_min_mom));
  list.acts(p + "cycle_max_mom", number(0).min(0).below(1), "OneCycle: largest first beta.",
            SW_MEMBER(scheduler.params.cycle_max_mom));
  list.acts(p + "decay_mom_rate", number(0), "OneCycle: growth of the first beta after the cycle.",
            SW_MEMBER(scheduler.params.decay_mom_rate));
}

void add_warmup_params(FieldList& list) {
  const std::string p = kPrefix;
  list.acts(p + "warmup_min_lr", number_or_list(0).min(0),
            "WarmupLR, WarmupDecayLR: first learning rate, of the first two steps.",
            SW_MEMBER(scheduler.params.warmup_min_lr));
  list.acts(p + "warmup_max_lr", number_or_list(0).or_null().min(0),
            "WarmupLR, WarmupDecayLR: learning rate after the warm-up; null: the "
            "optimizer's own. WarmupDecayLR takes 0.001 when the key is not given.",
            SW_MEMBER(scheduler.params.warmup_max_lr))
      .derived();
  list.acts(p + "warmup_num_steps", integer(0).min(0),
            "Warmup schedules: steps of the warm-up; less than 2 are taken as 2.",
            SW_MEMBER(scheduler.params.warmup_num_steps));
  list.acts(p + "warmup_type", one_of({"log", "linear"}, "log"),
            "Warmup schedules: form of the warm-up.", SW_MEMBER(scheduler.params.warmup_type));
  list.acts(p + "total_num_steps", integer(0).required().min(1),
            "WarmupDecayLR, WarmupCosineLR: steps of the training. Required by them.",
            SW_MEMBER(scheduler.params.total_num_steps));
  list.acts(p + "warmup_min_ratio", number(0).min(0),
            "WarmupCosineLR: first share of the optimizer's learning rate, of the first two steps.",
            SW_MEMBER(scheduler.params.warmup_min_ratio));
  list.acts(p + "cos_min_ratio", number(0).min(0),
            "WarmupCosineLR: last share of the optimizer's learning rate.",
            SW_MEMBER(scheduler.params.cos_min_ratio));
}

}  // namespace

void add_scheduler_fields(FieldList& list) {
  list.section("scheduler", "The learning-rate schedule, unless one is passed to initialize().");
  Shape types = one_of(known_scheduler_types(), "").or_null();
  types.described =
      "\"WarmupLR\", \"WarmupDecayLR\", \"WarmupCosineLR\", \"OneCycle\" or \"LRRangeTest\"";
  list.acts("scheduler.type", types,
            "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest. Classes of "
            "torch.optim.lr_scheduler are passed to initialize() as objects. The warm-ups start at "
            "rate 0 unless told otherwise, and the first two steps have it, as in DeepSpeed.",
            SW_MEMBER(scheduler.type))
      .instead("pass a torch scheduler through initialize(lr_scheduler=)");
  list.section("scheduler.params", "Settings of the schedule; which ones depends on its type.");
  add_range_test_params(list);
  add_cycle_rate_params(list);
  add_cycle_momentum_params(list);
  add_warmup_params(list);
  list.acts(std::string(kPrefix) + "last_batch_iteration", integer(0).min(-1).max(kMostSteps),
            "Step at which the schedule starts; -1: before the first.",
            SW_MEMBER(scheduler.params.last_batch_iteration));
}

}  // namespace shardwise::config
