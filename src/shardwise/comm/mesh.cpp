#include "shardwise/comm/mesh.h"

#include "shardwise/base/check.h"

namespace shardwise::comm {

Mesh Mesh::data_parallel(int rank, int world_size, int shard_size) {
  SW_CHECK(rank >= 0 && rank < world_size);
  const int shard = shard_size == 0 ? world_size : shard_size;
  SW_CHECK_EQ(world_size % shard, 0);
  return Mesh({{"replicate", world_size / shard, rank / shard},
               {"shard", shard, rank % shard},
               {"tp", 1, 0},
               {"pp", 1, 0},
               {"ep", 1, 0},
               {"cp", 1, 0}});
}

const MeshAxis& Mesh::axis(const std::string& name) const {
  for (const MeshAxis& axis : axes_) {
    if (axis.name == name) {
      return axis;
    }
  }
  SW_FAIL(InternalError, "the mesh has no axis '", name, "'");
}

int Mesh::world_size() const {
  int size = 1;
  for (const MeshAxis& axis : axes_) {
    size *= axis.size;
  }
  return size;
}

std::vector<Channel*> ShardChannels::list() const {
  std::vector<Channel*> all;
  for (const auto& channel : {gather, reduce, replicate, world}) {
    if (channel) {
      all.push_back(channel.get());
    }
  }
  return all;
}

}  // namespace shardwise::comm
