#include "shardwise/comm/rank_group.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/comm/c10d_transport.h"
#include "shardwise/comm/gloo/gloo_group.h"
#include "shardwise/comm/meeting_point.h"
#include "shardwise/comm/nccl/nccl_group.h"

namespace shardwise::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// NCCL's own watchdog kills the process without a word about units, so it waits longer than we do.
constexpr std::chrono::seconds kNcclMargin(60);

c10::intrusive_ptr<c10d::Backend> make_backend(const StorePtr& store, const MeshAxis& axis,
                                               at::Device device, std::chrono::milliseconds timeout,
                                               int max_ctas) {
  return device.is_cpu() ? make_gloo_backend(store, axis.index, axis.size, timeout)
                         : make_nccl_backend(store, axis.index, axis.size, device,
                                             timeout + kNcclMargin, max_ctas);
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
                         std::chrono::milliseconds timeout, const GroupOptions& options) {
  const StorePtr store = environment.world_size > 1
                             ? meet_ranks(environment, timeout)
                             : StorePtr(c10::make_intrusive<c10d::HashStore>());
  const Mesh mesh =
      Mesh::data_parallel(environment.rank, environment.world_size, options.shard_size);
  const MeshAxis& shard = mesh.axis("shard");
  const MeshAxis& replicate = mesh.axis("replicate");
  // `number` tells the groups of one kind apart: each has a store of its own.
  const auto channel = [&](const std::string& label, const MeshAxis& axis, int number) {
    c10::intrusive_ptr<c10d::Backend> backend;
    if (axis.size > 1 || options.force) {
      const auto own = c10::make_intrusive<c10d::PrefixStore>(concat(label, number), store);
      backend = make_backend(own, axis, device, timeout, options.max_ctas);
    }
    return make_channel(backend, device, timeout, label);
  };
  ShardChannels channels{channel("gather", shard, replicate.index),
                         channel("reduce", shard, replicate.index)};
  if (replicate.size > 1) {
    channels.replicate = channel("replicate", replicate, shard.index);
    channels.world =
        channel("world", {"world", environment.world_size, environment.rank}, /*number=*/0);
  }
  return channels;
}

}  // namespace shardwise::comm
