// A parameter of a model that is built in shards, from its construction until an engine takes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/params/flat_storage.h"
#include "shardwise/params/unit.h"
#include "shardwise/zero/access_levels.h"
#include "shardwise/zero/agreement.h"

namespace shardwise::zero {

// Each rank keeps a slice. Holds no reference to the parameter itself. Everything is collective.
class EarlyShard : public params::ValueSource {
 public:
  // Takes over the storage of `parameter`, a leaf on the CPU or on the channel's device: rank 0's
  // values, converted to `dtype`, become everybody's, then it is released. `name` is for errors.
  // Collectives run on `device`.
  EarlyShard(std::shared_ptr<comm::Channel> channel, at::Device device, const at::Tensor& parameter,
             at::ScalarType dtype, std::string name);

  // As OpenUnits::open and close, for this parameter. `discard` communicates nothing: all ranks do
  // so, or an error ends the construction.
  void open(int modifier);
  void close(bool discard);
  bool is_open() const { return levels_.any(); }
  // Whether `tensor` is the parameter or shares its memory.
  bool holds(const at::Tensor& tensor) const { return storage_.holds(tensor); }
  std::int64_t shard_bytes() const { return static_cast<std::int64_t>(shard_.nbytes()); }
  at::Tensor take() override;

 private:
  at::Tensor gather() const;
  // What forbids to take changes over, or to allow them; "" for nothing, the same on all ranks.
  std::string objection(int modifier);
  void share(const at::Tensor& flat, int root);
  std::vector<at::Tensor> flats() const;

  std::shared_ptr<comm::Channel> channel_;
  at::Device device_;
  std::string name_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  params::SegmentLayout layout_;
  params::FlatStorage storage_;
  at::Tensor shard_;  // [layout_.shard_numel] where the parameter was; undefined once taken
  at::Tensor whole_;  // [layout_.numel] while open
  AccessLevels levels_;
  Agreement agreement_;
};

}  // namespace shardwise::zero
