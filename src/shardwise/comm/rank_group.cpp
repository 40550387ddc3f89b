#include "shardwise/comm/rank_group.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

#include "shardwise/comm/c10d_transport.h"
#include "shardwise/comm/gloo/gloo_group.h"
#include "shardwise/comm/meeting_point.h"
#include "shardwise/comm/nccl/nccl_group.h"

namespace shardwise::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// NCCL's own watchdog kills the process without a word about units, so it waits longer than we do.
constexpr std::chrono::seconds kNcclMargin(60);

c10::intrusive_ptr<c10d::Backend> make_backend(const StorePtr& store,
                                               const config::LaunchEnvironment& environment,
                                               at::Device device,
                                               std::chrono::milliseconds timeout) {
  const int rank = environment.rank;
  const int size = environment.world_size;
  return device.is_cpu() ? make_gloo_backend(store, rank, size, timeout)
                         : make_nccl_backend(store, rank, size, device, timeout + kNcclMargin);
}

}  // namespace

std::shared_ptr<Channel> make_channel(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      at::Device device, std::chrono::milliseconds timeout,
                                      const std::string& label) {
  std::shared_ptr<Transport> transport;
  if (!backend) {
    transport = make_single_transport();
  } else if (device.is_cpu()) {
    transport = make_cpu_transport(backend, timeout);
  } else {
    transport = make_nccl_transport(backend, device, timeout);
  }
  return std::make_shared<Channel>(std::move(transport), label);
}

ShardChannels join_ranks(const config::LaunchEnvironment& environment, at::Device device,
                         std::chrono::milliseconds timeout, bool force) {
  const bool alone = environment.world_size == 1 && !force;
  const StorePtr store = environment.world_size > 1
                             ? meet_ranks(environment, timeout)
                             : StorePtr(c10::make_intrusive<c10d::HashStore>());
  const auto channel = [&](const std::string& label) {
    c10::intrusive_ptr<c10d::Backend> backend;
    if (!alone) {
      const auto own = c10::make_intrusive<c10d::PrefixStore>(label, store);
      backend = make_backend(own, environment, device, timeout);
    }
    return make_channel(backend, device, timeout, label);
  };
  auto gather = channel("gather");
  auto reduce = channel("reduce");
  return {std::move(gather), std::move(reduce)};
}

}  // namespace shardwise::comm
