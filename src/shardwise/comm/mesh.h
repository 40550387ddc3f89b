// The device mesh: how the ranks of a job are arranged along named axes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/channel.h"

namespace shardwise::comm {

// One axis of the mesh and this rank's place on it.
struct MeshAxis {
  std::string name;
  int size = 1;
  int index = 0;
};

// Named axes; their sizes multiply to the world size. Today the axes but "shard" and "replicate"
// have size 1.
class Mesh {
 public:
  // Neighbouring ranks along "shard", `shard_size` of them (0: all), the rest along "replicate".
  static Mesh data_parallel(int rank, int world_size, int shard_size = 0);

  const MeshAxis& axis(const std::string& name) const;
  int world_size() const;
  const std::vector<MeshAxis>& axes() const { return axes_; }

 private:
  explicit Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}
  std::vector<MeshAxis> axes_;
};

// Two channels of the shard axis, separate communicators, so that gathers and reductions overlap: a
// c10d NCCL group would run all of its collectives on one stream. With hybrid sharding, where the
// shard axis is not everybody, one of the replicate axis and one of all ranks as well.
struct ShardChannels {
  std::shared_ptr<Channel> gather;
  std::shared_ptr<Channel> reduce;
  std::shared_ptr<Channel> replicate = nullptr;  // ranks with the same shards; null: no other rank
  std::shared_ptr<Channel> world = nullptr;      // null: the shard axis is everybody

  Channel& everybody() const { return world ? *world : *reduce; }
  std::vector<Channel*> list() const;  // those that exist
};

}  // namespace shardwise::comm
