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

std::string segment_name(const UnitSpec& spec, const ParameterSpec& first, bool trainable,
                         bool matrices) {
  return concat(spec.name, " (", c10::toString(first.dtype), trainable ? "" : ", frozen",
                matrices ? ", matrices" : "", ")");
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

Registry::Registry(std::vector<UnitSpec>&& specs, const RegistryOptions& options) {
  check_not_listed_twice(specs);
  check_no_partial_aliases(specs);
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  try {
    for (UnitSpec& spec : specs) {
      add_unit(std::move(spec), options);
    }
  } catch (...) {
    let_go();
    throw;
  }
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
    SW_USER_CHECK(UsageError,
                  parameter.tensor.sizes() == at::IntArrayRef(parameter.sizes) &&
                      address.segment->storage.holds(parameter.tensor),
                  "parameter ", parameter.name,
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

void Registry::add_unit(UnitSpec spec, const RegistryOptions& options) {
  auto unit = std::make_unique<Unit>();
  unit->id = static_cast<int>(units_.size());
  unit->name = spec.name;
  unit->uses = spec.uses;
  using Kind = std::tuple<at::ScalarType, bool, std::optional<at::ScalarType>, bool>;
  std::map<Kind, Segment*> by_kind;
  std::map<Segment*, std::vector<ValueSource*>> sources;
  for (ParameterSpec& parameter : spec.parameters) {
    const bool trainable = parameter.tensor.requires_grad();
    const bool matrices = trainable && parameter.whole_matrix;
    Segment*& segment = by_kind[{parameter.dtype, trainable, parameter.travel, matrices}];
    if (segment == nullptr) {
      unit->segments.push_back(std::make_unique<Segment>());
      segment = unit->segments.back().get();
      segment->name = segment_name(spec, parameter, trainable, matrices);
      segment->id = static_cast<int>(segments_.size());
      segment->dtype = parameter.dtype;
      segment->trainable = trainable;
      segment->whole_matrices = matrices;
      segment->travel = parameter.travel;
      segments_.push_back(segment);
    }
    const int slot = static_cast<int>(segment->parameters.size());
    sources[segment].push_back(parameter.source.get());
    segment->parameters.push_back({.name = std::move(parameter.name),
                                   .aliases = std::move(parameter.aliases),
                                   .tensor = parameter.tensor,
                                   .sizes = parameter.tensor.sizes().vec(),
                                   .strides = dense_strides(parameter.tensor),
                                   .place = {},
                                   .group = trainable ? parameter.group : -1,
                                   .trainable = trainable ? trainable_count_++ : -1});
    if (trainable) {
      trainable_.push_back(static_cast<int>(parameters_.size()));
    }
    parameters_.push_back({unit->id, segment, slot});
  }
  for (auto& segment : unit->segments) {
    std::vector<std::int64_t> numels;
    for (const Parameter& parameter : segment->parameters) {
      numels.push_back(parameter.tensor.numel());
    }
    segment->layout = lay_out(numels, static_cast<std::int64_t>(c10::elementSize(segment->dtype)),
                              options.world_size);
    for (std::size_t i = 0; i < segment->parameters.size(); ++i) {
      segment->parameters[i].place = segment->layout.places[i];
    }
  }
  unit->sharded = options.shard_parameters && options.shard_parameters(*unit);
  units_.push_back(std::move(unit));
  for (auto& segment : units_.back()->segments) {
    segment->sharded = units_.back()->sharded;
    fill(*segment, sources[segment.get()], options);
    if (sources[segment.get()].front() != nullptr) {
      malloc_trim(0);  // the model may not fit whole: see the constructor
    }
  }
}

// Copies the values into one flat buffer, makes them equal on all ranks, and points the parameters
// at it. The fp32 values are kept as a shard where training happens in 16 bits with fp32 masters.
void Registry::fill(Segment& segment, const std::vector<ValueSource*>& sources,
                    const RegistryOptions& options) {
  const bool keeps_fp32 =
      segment.trainable && segment.dtype != at::kFloat && !options.sixteen_bit_masters;
  const at::ScalarType exact = keeps_fp32 ? at::kFloat : segment.dtype;
  const auto numel = segment.layout.numel;
  at::Tensor flat = at::zeros({numel}, at::TensorOptions(exact).device(options.device));
  bool equal = true;  // what was built in shards is the same on all ranks
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Parameter& parameter = segment.parameters[i];
    equal = equal && sources[i] != nullptr;
    flat.as_strided(parameter.sizes, parameter.strides, parameter.place.begin)
        .copy_(sources[i] != nullptr ? sources[i]->take() : parameter.tensor.detach());
  }
  if (options.make_equal && !equal) {
    options.make_equal(segment, flat);
  }
  const Range mine = segment.layout.shard_of(options.rank);
  if (keeps_fp32) {
    segment.initial_fp32 =
        ShardHandle(options.shard_masters ? flat.narrow(0, mine.begin, mine.size()).clone() : flat);
  }
  at::Tensor values = flat.to(segment.dtype);
  segment.storage =
      FlatStorage(numel, segment.dtype, options.device,
                  "a parameter of unit " + segment.name +
                      " is released (ZeRO stage 3 keeps it sharded between uses): read it inside "
                      "shardwise.zero.GatheredParameters, call the module that owns it, or save "
                      "engine.state_dict()");
  for (Parameter& parameter : segment.parameters) {
    parameter.tensor.set_data(
        segment.storage.view(parameter.sizes, parameter.strides, parameter.place.begin));
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
