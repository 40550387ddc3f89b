#include "shardwise/comm/mesh.h"

#include "shardwise/base/check.h"

namespace shardwise::comm {

Mesh Mesh::data_parallel(int rank, int world_size) {
  SW_CHECK(rank >= 0 && rank < world_size);
  return Mesh({{"replicate", 1, 0},
               {"shard", world_size, rank},
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

}  // namespace shardwise::comm
