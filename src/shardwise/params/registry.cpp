#include "shardwise/params/registry.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <malloc.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::params {
namespace {

struct MemoryRange {
  std::int64_t begin;
  std::int64_t end;
  const std::string* name;
};

void check_not_listed_twice(const std::vector<UnitSpec>& specs) {
  std::unordered_map<const void*, const std::string*> seen;
  for (const UnitSpec& unit : specs) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const auto [at, fresh] =
          seen.emplace(parameter.tensor.unsafeGetTensorImpl(), &parameter.name);
      SW_USER_CHECK(UsageError, fresh, "parameter ", parameter.name, " is listed twice (also as ",
                    *at->second, "); each parameter belongs to one unit");
    }
  }
}

// A parameter may be the same tensor under several names, but not share memory with another one.
void check_no_partial_aliases(const std::vector<UnitSpec>& specs) {
  std::map<const void*, std::vector<MemoryRange>> by_storage;
  for (const UnitSpec& unit : specs) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const at::Tensor& tensor = parameter.tensor;
      SW_USER_CHECK(UsageError, tensor.layout() == at::kStrided, "parameter ", parameter.name,
                    " is sparse; shardwise trains dense parameters");
      SW_USER_CHECK(UsageError, !tensor.is_meta(), "parameter ", parameter.name,
                    " is on the meta device and has no values; materialise the module first, for "
                    "example with module.to_empty(device=...) and its own initialisation");
      if (tensor.numel() == 0 || parameter.source) {
        continue;
      }
      const auto itemsize = static_cast<std::int64_t>(tensor.itemsize());
      std::int64_t extent = 1;
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        extent += (tensor.size(d) - 1) * tensor.stride(d);
      }
      const std::int64_t begin = tensor.storage_offset() * itemsize;
      by_storage[tensor.storage().data()].push_back(
          {begin, begin + extent * itemsize, &parameter.name});
    }
  }
  for (auto& [storage, ranges] : by_storage) {
    std::sort(ranges.begin(), ranges.end(),
              [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      SW_USER_CHECK(UsageError, ranges[i].begin >= ranges[i - 1].end, "parameters ",
                    *ranges[i - 1].name, " and ", *ranges[i].name,
                    " share memory but are different tensors; tie weights by using the same "
                    "nn.Parameter object, or clone one of them");
    }
  }
}

// What the parameters of a segment have in common: dtype, trainable, dtype of travel, matrices.
using Kind = std::tuple<at::ScalarType, bool, std::optional<at::ScalarType>, bool>;

std::unique_ptr<Segment> make_segment(const Unit& unit, const Kind& kind) {
  auto segment = std::make_unique<Segment>();
  std::tie(segment->dtype, segment->trainable, segment->travel, segment->whole_matrices) = kind;
  segment->name =
      concat(unit.name, " (", c10::toString(segment->dtype), segment->trainable ? "" : ", frozen",
             segment->whole_matrices ? ", matrices" : "", ")");
  return segment;
}

// "parameter lm_head.weight", "one of the parameters a, b, c and 4 more of unit h.3": reading
// released memory does not say which of those that share it is meant.
std::string subject(const Segment& segment) {
  constexpr std::size_t kMostNamed = 3;
  const std::vector<Parameter>& parameters = segment.parameters;
  if (parameters.size() == 1) {
    return concat("parameter ", parameters.front().name);
  }
  std::string names;
  for (std::size_t i = 0; i < std::min(parameters.size(), kMostNamed); ++i) {
    names += (i == 0 ? "" : ", ") + parameters[i].name;
  }
  const std::size_t rest = parameters.size() - std::min(parameters.size(), kMostNamed);
  return concat("one of the parameters ", names, rest > 0 ? concat(" and ", rest, " more") : "",
                " of unit ", segment.name);
}

}  // namespace

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    return tensor.strides().vec();
  }
  std::vector<std::int64_t> strides(tensor.dim());
  std::int64_t stride = 1;
  for (std::int64_t d = tensor.dim() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(tensor.size(d), 1);
  }
  return strides;
}

Registry::Registry(std::vector<UnitSpec>&& specs, const RegistryOptions& options)
    : options_(options) {
  check_not_listed_twice(specs);
  check_no_partial_aliases(specs);
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  try {
    for (UnitSpec& spec : specs) {
      add_unit(std::move(spec));
    }
  } catch (...) {
    let_go();
    throw;
  }
  options_.make_equal = nullptr;  // what comes later is cut from equal values
  // Shards lie between the freed whole copies they were cut from; give those pages back.
  malloc_trim(0);
}

Registry::~Registry() { let_go(); }

void Registry::let_go() {
  for (Segment* segment : segments_) {
    if (segment->full.defined()) {
      hand_back(*segment, segment->full);
    }
    segment->storage.release();
  }
}

void Registry::check_intact() const {
  for (const ParameterAddress& address : parameters_) {
    const Parameter& parameter = address.parameter();
    SW_USER_CHECK(UsageError, address.segment->holds(parameter), "parameter ", parameter.name,
                  " was replaced: its data was assigned, its shape "
                  "changed (",
                  at::IntArrayRef(parameter.sizes), " before, ", parameter.tensor.sizes(),
                  " now) or the module was moved. Undo that, or "
                  "destroy() the engine and initialize() a new one.");
  }
}

void Registry::hand_back(Segment& segment, const at::Tensor& full) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : segment.parameters) {
    parameter.tensor.set_data(
        full.as_strided(parameter.sizes, parameter.strides, parameter.place.begin));
  }
}

void Registry::add_unit(UnitSpec spec) {
  auto unit = std::make_unique<Unit>();
  unit->id = static_cast<int>(units_.size());
  unit->name = spec.name;
  unit->uses = spec.uses;
  unit->backward_reads = spec.backward_reads;
  std::map<Kind, Segment*> by_kind;
  std::map<Segment*, std::vector<ValueSource*>> sources;
  for (ParameterSpec& parameter : spec.parameters) {
    const bool trainable = parameter.tensor.requires_grad();
    const Kind kind{parameter.dtype, trainable, parameter.travel,
                    trainable && parameter.whole_matrix};
    Segment*& segment = by_kind[kind];
    if (segment == nullptr) {
      unit->segments.push_back(make_segment(*unit, kind));
      segment = unit->segments.back().get();
      segment->id = static_cast<int>(segments_.size());
      segments_.push_back(segment);
    }
    sources[segment].push_back(parameter.source.get());
    parameters_.push_back({.unit = unit->id});
    add_parameter(*segment,
                  {.name = std::move(parameter.name),
                   .aliases = std::move(parameter.aliases),
                   .tensor = parameter.tensor,
                   .sizes = parameter.tensor.sizes().vec(),
                   .strides = dense_strides(parameter.tensor),
                   .place = {},
                   .group = parameter.group,
                   .whole_matrix = parameter.whole_matrix},
                  static_cast<int>(parameters_.size()) - 1);
  }
  for (auto& segment : unit->segments) {
    lay_out_segment(*segment);
  }
  if (unit->segments.size() == 1) {  // nothing to tell it from
    unit->segments.front()->name = unit->name;
  }
  unit->sharded = options_.shard_parameters && options_.shard_parameters(*unit);
  units_.push_back(std::move(unit));
  for (auto& segment : units_.back()->segments) {
    segment->sharded = units_.back()->sharded;
    fill(*segment, sources[segment.get()]);
    if (sources[segment.get()].front() != nullptr) {
      malloc_trim(0);  // the model may not fit whole: see the constructor
    }
  }
}

// The parameter `index` moves into the segment, behind those that are there.
void Registry::add_parameter(Segment& segment, Parameter parameter, int index) {
  parameters_[index].segment = &segment;
  parameters_[index].slot = static_cast<int>(segment.parameters.size());
  if (segment.trainable) {
    parameter.trainable = trainable_count_++;
    trainable_.push_back(index);
  }
  segment.parameters.push_back(std::move(parameter));
}

void Registry::lay_out_segment(Segment& segment) const {
  std::vector<std::int64_t> numels;
  for (const Parameter& parameter : segment.parameters) {
    numels.push_back(parameter.tensor.numel());
  }
  segment.layout = lay_out(numels, static_cast<std::int64_t>(c10::elementSize(segment.dtype)),
                           options_.world_size);
  for (std::size_t i = 0; i < segment.parameters.size(); ++i) {
    segment.parameters[i].place = segment.layout.places[i];
  }
}

std::vector<Segment*> Registry::unfreeze(const std::set<int>& parameters,
                                         const std::function<at::Tensor(const Segment&)>& whole) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  std::map<const Segment*, std::vector<int>> indices;
  std::set<const Segment*> left;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    indices[parameters_[i].segment].push_back(static_cast<int>(i));
  }
  for (const int index : parameters) {
    SW_CHECK(parameters_.at(index).parameter().trainable < 0);
    left.insert(parameters_[index].segment);
  }
  std::vector<Segment*> made;
  for (const auto& unit : units_) {
    const std::size_t count = unit->segments.size();
    for (std::size_t position = 0; position < count; ++position) {
      Segment& segment = *unit->segments[position];
      if (left.count(&segment) > 0) {
        const at::Tensor values = segment.sharded ? whole(segment) : segment.full;
        segment.storage.point_at(values);
        for (Segment* part : split(*unit, position, indices[&segment], parameters)) {
          made.push_back(part);
        }
      }
    }
  }
  malloc_trim(0);  // as in the constructor
  return made;
}

// Replaces a frozen segment, whose values can be read, by one without the parameters that leave and
// trainable ones of those. `indices`: of its parameters, by slot. Returns the trainable ones.
std::vector<Segment*> Registry::split(Unit& unit, std::size_t position,
                                      const std::vector<int>& indices,
                                      const std::set<int>& leaving) {
  const std::unique_ptr<Segment> old = std::move(unit.segments[position]);
  std::map<Kind, std::unique_ptr<Segment>> parts;  // the frozen one, if any, comes first
  for (std::size_t slot = 0; slot < indices.size(); ++slot) {
    Parameter& parameter = old->parameters[slot];
    const bool leaves = leaving.count(indices[slot]) > 0;
    const Kind kind{old->dtype, leaves, old->travel, leaves && parameter.whole_matrix};
    std::unique_ptr<Segment>& part = parts[kind];
    if (!part) {
      part = make_segment(unit, kind);
    }
    add_parameter(*part, std::move(parameter), indices[slot]);
  }
  std::vector<Segment*> made;
  for (auto& [kind, part] : parts) {
    part->sharded = old->sharded;
    lay_out_segment(*part);
    fill(*part, std::vector<ValueSource*>(part->parameters.size(), nullptr));
    if (part->trainable) {
      made.push_back(part.get());
    }
    if (!unit.segments[position]) {  // the first takes the place of the old one
      part->id = old->id;
      segments_[part->id] = part.get();
      unit.segments[position] = std::move(part);
    } else {
      part->id = static_cast<int>(segments_.size());
      segments_.push_back(part.get());
      unit.segments.push_back(std::move(part));
    }
  }
  old->storage.release();
  return made;
}

// Copies the values into one flat buffer, makes them equal on all ranks, and points the parameters
// at it. The fp32 values are kept as a shard where training happens in 16 bits with fp32 masters.
void Registry::fill(Segment& segment, const std::vector<ValueSource*>& sources) const {
  const bool keeps_fp32 =
      segment.trainable && segment.dtype != at::kFloat && !options_.sixteen_bit_masters;
  const at::ScalarType exact = keeps_fp32 ? at::kFloat : segment.dtype;
  const auto numel = segment.layout.numel;
  at::Tensor flat = at::zeros({numel}, at::TensorOptions(exact).device(options_.device));
  bool equal = true;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Parameter& parameter = segment.parameters[i];
    equal = equal && sources[i] != nullptr && sources[i]->same_on_all_ranks();
    flat.as_strided(parameter.sizes, parameter.strides, parameter.place.begin)
        .copy_(sources[i] != nullptr ? sources[i]->take() : parameter.tensor.detach());
  }
  if (options_.make_equal && !equal) {
    options_.make_equal(segment, flat);
  }
  const Range mine = segment.layout.shard_of(options_.rank);
  if (keeps_fp32) {
    segment.initial_fp32 = ShardHandle(
        options_.shard_masters ? flat.narrow(0, mine.begin, mine.size()).clone() : flat);
  }
  at::Tensor values = flat.to(segment.dtype);
  segment.storage =
      FlatStorage(numel, segment.dtype, options_.device,
                  subject(segment) +
                      " is released (ZeRO stage 3 keeps it sharded between uses): read it inside "
                      "shardwise.zero.GatheredParameters, call the module that owns it, or save "
                      "engine.state_dict(). In a backward: a block must hand its results out as "
                      "tensors, or in lists, tuples, dicts or dataclasses of them; generators and "
                      "other objects cannot be seen into");
  for (Parameter& parameter : segment.parameters) {
    parameter.tensor.set_data(segment.view_of(parameter));
  }
  if (segment.sharded) {
    segment.shard = ShardHandle(values.narrow(0, mine.begin, mine.size()).clone());
  } else {
    segment.full = std::move(values);
    segment.storage.point_at(segment.full);
    segment.shard = ShardHandle(segment.full.narrow(0, mine.begin, mine.size()));
  }
}

}  // namespace shardwise::params
