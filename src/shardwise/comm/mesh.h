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

// Named axes; their sizes multiply to the world size. Today every axis but "shard" has size 1.
class Mesh {
 public:
  // All `world_size` ranks along "shard".
  static Mesh data_parallel(int rank, int world_size);

  const MeshAxis& axis(const std::string& name) const;
  int world_size() const;
  const std::vector<MeshAxis>& axes() const { return axes_; }

 private:
  explicit Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}
  std::vector<MeshAxis> axes_;
};

// The two channels of the shard axis. They are separate communicators, so that gathers and
// reductions overlap: a c10d NCCL group would run all of its collectives on one stream.
struct ShardChannels {
  std::shared_ptr<Channel> gather;
  std::shared_ptr<Channel> reduce;
};

}  // namespace shardwise::comm
