// All units of an engine, built once from what the front end says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shardwise/params/unit.h"

namespace shardwise::params {

struct RegistryOptions {
  int rank = 0;
  int world_size = 1;
  at::Device device = at::kCPU;
  // Keep only this rank's slice of the fp32 master weights.
  bool shard_masters = false;
  // 16-bit parameters are their own masters; no fp32 values are kept.
  bool sixteen_bit_masters = false;
  // Whether the parameters of a unit are released between uses.
  std::function<bool(const Unit&)> shard_parameters;
  // Called with the flat fp32 or 16-bit values of each segment before they are cut into shards, so
  // that all ranks start from the same ones.
  std::function<void(const Segment&, at::Tensor flat)> make_equal;
};

// Strides for a view in a flat buffer: the parameter's own where it is dense (channels_last stays
// channels_last), else those of a contiguous tensor.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor);

// Where one parameter lives.
struct ParameterAddress {
  int unit = -1;
  Segment* segment = nullptr;
  int slot = -1;  // index in segment->parameters
  const Parameter& parameter() const { return segment->parameters[slot]; }
};

class Registry {
 public:
  // Takes over the storage of every parameter. Throws UsageError when a parameter aliases a part of
  // another, or is listed twice; the module is untouched then. If anything fails later, parameters
  // that were sharded by then throw when read.
  Registry(std::vector<UnitSpec>&& specs, const RegistryOptions& options);
  // Gives whole segments back to their parameters; those of sharded ones throw when read from here
  // on, unless hand_back() was called for them.
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Frozen parameters, by index, become trainable: in each unit they leave the segments they were
  // in for new ones, which are returned; other segments keep their places and ids. `whole` gives
  // the flat values [layout.numel] of a sharded segment. Views of the segments that were left
  // throw.
  std::vector<Segment*> unfreeze(const std::set<int>& parameters,
                                 const std::function<at::Tensor(const Segment&)>& whole);

  // Throws UsageError if a parameter no longer is the view that the engine made: somebody assigned
  // its data, moved the module or changed a shape.
  void check_intact() const;
  // The parameters of `segment` become ordinary tensors that own `full` [layout.numel] together.
  static void hand_back(Segment& segment, const at::Tensor& full);

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  Unit& unit(int id) const { return *units_.at(id); }
  const std::vector<Segment*>& segments() const { return segments_; }
  const std::vector<ParameterAddress>& parameters() const { return parameters_; }
  int trainable_count() const { return trainable_count_; }
  // Address of a trainable parameter by its index.
  const ParameterAddress& trainable(int index) const { return parameters_[trainable_[index]]; }

 private:
  void add_unit(UnitSpec spec);
  void let_go();
  void add_parameter(Segment& segment, Parameter parameter, int index);
  void lay_out_segment(Segment& segment) const;
  void fill(Segment& segment, const std::vector<ValueSource*>& sources) const;
  std::vector<Segment*> split(Unit& unit, std::size_t position, const std::vector<int>& indices,
                              const std::set<int>& leaving);

  RegistryOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Segment*> segments_;
  std::vector<ParameterAddress> parameters_;
  std::vector<int> trainable_;
  int trainable_count_ = 0;
};

}  // namespace shardwise::params
