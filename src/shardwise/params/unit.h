// Units: the parameters that are gathered, reduced and updated together, normally one transformer
// block. A unit has one segment for each combination of dtype, trainability, dtype of travel and
// kind of update among its parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/params/flat_storage.h"
#include "shardwise/params/layout.h"

namespace shardwise::params {

// The mesh axis that data-parallel ranks lie on; `comm::Mesh` resolves it.
inline constexpr const char* kShardAxis = "shard";

// The values of a parameter that does not hold them itself: its model was built in shards, or gets
// its values only now.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  // The whole values in the parameter's shape; the source is empty afterwards. Collective.
  virtual at::Tensor take() = 0;
  // Whether all ranks get the same bits; else rank 0's become everybody's.
  virtual bool same_on_all_ranks() const { return true; }
};

// What a front end says about one parameter.
struct ParameterSpec {
  std::string name;                  // canonical, as state_dict() has it
  std::vector<std::string> aliases;  // other names of the same tensor (tied weights)
  at::Tensor tensor;                 // the leaf; its storage is taken over
  at::ScalarType dtype;              // dtype to train in
  int group = 0;                     // index of the optimizer's parameter group; -1: in none
  std::shared_ptr<ValueSource> source = nullptr;        // null: the values lie in `tensor`
  std::optional<at::ScalarType> travel = std::nullopt;  // see Segment
  bool whole_matrix = false;  // the optimizer's rule needs it in one piece (Muon)
};

// What a front end says about one unit. `uses` lists units whose parameters this unit reads too
// (tied weights): they stay gathered while this one is in use.
struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  std::vector<int> uses;
  bool backward_reads = true;  // false: only forward reads parameters (an embedding)
};

// One parameter inside a segment.
struct Parameter {
  std::string name;
  std::vector<std::string> aliases;
  at::Tensor tensor;  // the user's leaf, now a view of the segment's storage
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  Range place;                // elements within the segment
  int group = 0;              // parameter group of the optimizer; -1: none moves it
  int trainable = -1;         // index among all trainable parameters; -1 when not trainable
  bool whole_matrix = false;  // see ParameterSpec
};

// Where the data of a shard is kept. Optimizer and checkpoint ask the handle each time and never
// keep the pointer, so that the data may move between memory tiers.
enum class Tier { kDevice, kPinnedHost, kFile };
inline constexpr std::array kTiers = {Tier::kDevice, Tier::kPinnedHost, Tier::kFile};
const char* tier_name(Tier tier);  // "device", "pinned_host", "file"

class ShardHandle {
 public:
  ShardHandle() = default;
  explicit ShardHandle(at::Tensor data, Tier tier = Tier::kDevice)
      : data_(std::move(data)), tier_(tier) {}
  // The elements, contiguous; undefined when nothing is held.
  const at::Tensor& data() const { return data_; }
  Tier tier() const { return tier_; }
  std::int64_t bytes() const;

 private:
  at::Tensor data_;
  Tier tier_ = Tier::kDevice;
};

// Parameters of one dtype, trainability, dtype of travel and kind of update. Copyable only by
// reference: parameters point into it.
struct Segment {
  std::string name;  // "model.layers.3 (bfloat16)"
  int id = -1;       // index among all segments of the engine
  at::ScalarType dtype = at::kFloat;
  bool trainable = false;
  bool sharded = false;         // parameters are released between uses
  bool whole_matrices = false;  // see ParameterSpec::whole_matrix; has other states than the rest
  // dtype in which gathered parameters and reduced gradients travel; nothing: parameters as they
  // are, gradients as the engine says.
  std::optional<at::ScalarType> travel;
  SegmentLayout layout;
  std::vector<Parameter> parameters;
  FlatStorage storage;
  at::Tensor full;    // [layout.numel] in `dtype` while not sharded, else undefined
  ShardHandle shard;  // this rank's slice in `dtype`; a view of `full` while not sharded
  ShardHandle
      initial_fp32;  // the slice before it was rounded to `dtype`; undefined without fp32 master

  std::int64_t bytes() const;  // of all parameters with padding

  // A parameter's place in the storage, and whether the parameter still is that view: nobody
  // assigned its data, moved it or changed its shape.
  at::Tensor view_of(const Parameter& parameter) const;
  bool holds(const Parameter& parameter) const;
  // Takes the parameters' version counters as they are now.
  void remember_versions();
  // The first parameter that was changed in place since then; null if none was.
  const Parameter* changed_in_place() const;

  std::vector<std::uint32_t> versions;  // by parameter
};

struct Unit {
  int id = -1;
  std::string name;
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<int> uses;
  bool backward_reads = true;
  bool sharded = false;

  std::int64_t numel() const;  // with padding
};

}  // namespace shardwise::params
