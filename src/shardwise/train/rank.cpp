#include "shardwise/train/rank.h"

#include <chrono>

#include "shardwise/comm/rank_group.h"
#include "shardwise/device/choice.h"
#include "shardwise/device/determinism.h"

namespace shardwise::train {

Rank join_job(const config::LaunchEnvironment& environment, const config::Settings& settings,
              const config::Config& config) {
  const at::Device device = device::choose_device(settings.accelerator, environment.local_rank);
  if (config.own.deterministic) {
    device::make_deterministic(device);
  }
  const std::chrono::milliseconds timeout(
      static_cast<std::int64_t>(config.own.timeout_seconds * 1000));
  return {.rank = environment.rank,
          .world_size = environment.world_size,
          .device = device,
          .channels = comm::join_ranks(environment, device, timeout,
                                       {.force = config.own.force_communication,
                                        .shard_size = config.own.hybrid_shard_size,
                                        .max_ctas = config.own.max_ctas})};
}

}  // namespace shardwise::train
