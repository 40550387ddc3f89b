#include "shardwise/zero/sharded_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::zero {
namespace {

using params::Range;
using params::Segment;
using params::ShardHandle;

kernels::DType kernel_dtype(at::ScalarType dtype, const std::string& segment) {
  switch (dtype) {
    case at::kFloat: return kernels::DType::kFloat32;
    case at::kHalf: return kernels::DType::kFloat16;
    case at::kBFloat16: return kernels::DType::kBFloat16;
    default:
      SW_FAIL(UsageError, "trainable parameters of unit ", segment, " are ", c10::toString(dtype),
              "; the optimizer updates float32, float16 and bfloat16. Convert them with "
              "module.float(), or freeze them");
  }
}

template <typename T>
DeviceArray upload(const std::vector<T>& values, at::Device device) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  DeviceArray array(bytes, device);
  if (bytes > 0) {
    at::Tensor host = at::empty({bytes}, at::kByte);
    std::memcpy(host.data_ptr(), values.data(), bytes);
    array.tensor().narrow(0, 0, bytes).copy_(host);
  }
  return array;
}

bool same(const kernels::ShardPointers& a, const kernels::ShardPointers& b) {
  return a.parameter == b.parameter && a.master == b.master && a.state[0] == b.state[0] &&
         a.state[1] == b.state[1] && a.gradient == b.gradient &&
         a.parameter_dtype == b.parameter_dtype && a.gradient_dtype == b.gradient_dtype;
}

// Pieces of at most kMaxChunk elements of everything that a segment has within `range`.
void append_chunks(const Segment& segment, const Range& range,
                   std::vector<kernels::Chunk>& chunks) {
  for (const params::Parameter& parameter : segment.parameters) {
    const Range mine = params::intersect(parameter.place, range);
    for (std::int64_t at = mine.begin; at < mine.end; at += kernels::kMaxChunk) {
      chunks.push_back({.offset = at - range.begin,
                        .length = static_cast<std::int32_t>(
                            std::min<std::int64_t>(kernels::kMaxChunk, mine.end - at)),
                        .segment = segment.id,
                        .group = parameter.group,
                        .parameter = parameter.trainable});
    }
  }
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const params::Registry& registry, const Reducer& reducer,
                                   std::unique_ptr<optim::UpdateRule> rule, ZeroPlan plan, int rank)
    : registry_(registry),
      reducer_(reducer),
      rule_(std::move(rule)),
      plan_(plan),
      rank_(rank),
      shards_(registry.segments().size()) {
  const at::NoGradGuard no_grad;
  for (Segment* segment : registry_.segments()) {
    if (segment->trainable) {
      make_shard(*segment);
    }
  }
  own_ = make_table(/*own_slice_only=*/true);
  if (!plan_.shard_optimizer) {
    whole_ = make_table(/*own_slice_only=*/false);
  }
}

void ShardedOptimizer::make_shard(Segment& segment) {
  Shard& shard = shards_[segment.id];
  kernel_dtype(segment.dtype, segment.name);  // refuses other dtypes
  shard.range =
      plan_.shard_optimizer ? segment.layout.shard_of(rank_) : Range{0, segment.layout.numel};
  shard.parameter = plan_.shard_optimizer ? segment.shard : ShardHandle(segment.full);
  if (segment.dtype == at::kFloat) {
    shard.master = shard.parameter;
  } else {
    shard.master = segment.initial_fp32;
    segment.initial_fp32 = ShardHandle();
  }
  if (!segment.sharded) {
    segment.remember_versions();
  }
  for (std::size_t i = 0; i < rule_->state_names().size(); ++i) {
    shard.states.emplace_back(at::zeros_like(shard.master.data()));
  }
}

ShardedOptimizer::Table ShardedOptimizer::make_table(bool own_slice_only) const {
  std::vector<kernels::Chunk> chunks;
  at::Device device = at::kCPU;
  for (const Segment* segment : registry_.segments()) {
    if (segment->trainable) {
      device = segment->shard.data().device();
      append_chunks(*segment,
                    own_slice_only ? segment->layout.shard_of(rank_) : shards_[segment->id].range,
                    chunks);
    }
  }
  Table table;
  table.chunk_count = static_cast<std::int64_t>(chunks.size());
  table.chunks = upload(chunks, device);
  refresh(table, own_slice_only);
  return table;
}

// Handles are asked for their data each time; the copy on the device is renewed when it has moved.
void ShardedOptimizer::refresh(Table& table, bool own_slice_only) const {
  std::vector<kernels::ShardPointers> pointers(shards_.size());
  at::Device device = at::kCPU;
  for (const Segment* segment : registry_.segments()) {
    if (!segment->trainable || segment->layout.numel == 0) {
      continue;
    }
    const Shard& shard = shards_[segment->id];
    device = shard.master.data().device();
    kernels::ShardPointers& entry = pointers[segment->id];
    const at::Tensor gradient = own_slice_only || plan_.shard_optimizer ? reducer_.shard(*segment)
                                                                        : reducer_.whole(*segment);
    entry.gradient = gradient.data_ptr();
    entry.gradient_dtype = kernel_dtype(gradient.scalar_type(), segment->name);
    entry.parameter = shard.parameter.data().data_ptr();
    entry.parameter_dtype = kernel_dtype(segment->dtype, segment->name);
    entry.master = shard.master.data().data_ptr<float>();
    for (std::size_t i = 0; i < shard.states.size(); ++i) {
      entry.state[i] = shard.states[i].data().data_ptr<float>();
    }
  }
  if (!std::equal(pointers.begin(), pointers.end(), table.uploaded.begin(), table.uploaded.end(),
                  same)) {
    table.pointers = upload(pointers, device);
    table.uploaded = std::move(pointers);
  }
  table.view = {.chunks = table.chunks.as<kernels::Chunk>(),
                .chunk_count = table.chunk_count,
                .segments = table.pointers.as<kernels::ShardPointers>(),
                .segment_count = static_cast<std::int64_t>(table.uploaded.size())};
}

const kernels::ChunkTable& ShardedOptimizer::norm_table() {
  refresh(own_, /*own_slice_only=*/true);
  return own_.view;
}

void ShardedOptimizer::set_groups(const std::vector<optim::GroupValues>& groups) {
  for (const params::ParameterAddress& address : registry_.parameters()) {
    SW_USER_CHECK(UsageError, address.parameter().group < static_cast<int>(groups.size()),
                  "parameter ", address.parameter().name, " belongs to param_groups[",
                  address.parameter().group, "], but there are ", groups.size(),
                  " groups; put the group back");
  }
  rule_->set_groups(groups);
}

void ShardedOptimizer::check_unchanged() const {
  for (const Segment* segment : registry_.segments()) {
    if (segment->trainable && !segment->sharded && segment->dtype != at::kFloat) {
      const params::Parameter* changed = segment->changed_in_place();
      SW_USER_CHECK(UsageError, changed == nullptr, "parameter ", changed->name,
                    " was changed in place since the last step; its fp32 master weight was not, "
                    "and would undo the change. Change weights with engine.load_state_dict().");
    }
  }
}

void ShardedOptimizer::update(const kernels::Place& place, const Boundary& boundary) {
  Table& table = plan_.shard_optimizer ? own_ : whole_;
  refresh(table, plan_.shard_optimizer);
  rule_->run(place, table.view, boundary.decision(), boundary.active(), boundary.steps());
  for (Segment* segment : registry_.segments()) {
    for (const params::Parameter& parameter : segment->parameters) {
      if (parameter.trainable >= 0) {
        parameter.tensor.unsafeGetTensorImpl()->bump_version();
      }
    }
    if (segment->trainable && !segment->sharded) {
      segment->remember_versions();
    }
  }
}

void ShardedOptimizer::gather_updated(comm::Channel& channel, OrderHash& hash) {
  if (!plan_.shard_optimizer) {
    return;
  }
  std::vector<comm::WorkPtr> work;
  for (const auto& unit : registry_.units()) {
    for (const auto& segment : unit->segments) {
      if (segment->trainable && !segment->sharded && segment->layout.numel > 0) {
        hash.add(comm::Collective::kAllGather, unit->id);
        work.push_back(channel.all_gather(segment->full, segment->shard.data(), segment->name));
      }
    }
  }
  for (const comm::WorkPtr& item : work) {
    item->wait();
  }
}

const ShardHandle& ShardedOptimizer::master(const Segment& segment) const {
  return shards_[segment.id].master;
}

ShardHandle ShardedOptimizer::state(const Segment& segment, const std::string& name) const {
  const auto names = rule_->state_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? ShardHandle() : shards_[segment.id].states[at - names.begin()];
}

params::StateView ShardedOptimizer::state_view() const {
  params::StateView view;
  for (const params::ParameterAddress& address : registry_.parameters()) {
    const params::Parameter& parameter = address.parameter();
    if (parameter.trainable < 0) {
      continue;
    }
    const Shard& shard = shards_[address.segment->id];
    const Range mine = params::intersect(parameter.place, shard.range);
    if (mine.size() == 0) {
      continue;
    }
    const auto add = [&](const std::string& kind, const at::Tensor& data) {
      view.push_back({.parameter = parameter.name,
                      .kind = kind,
                      .sizes = parameter.sizes,
                      .strides = parameter.strides,
                      .elements = {mine.begin - parameter.place.begin,
                                   mine.begin - parameter.place.begin + mine.size()},
                      .data = data.narrow(0, mine.begin - shard.range.begin, mine.size())});
    };
    add("master", shard.master.data());
    const auto names = rule_->state_names();
    for (std::size_t i = 0; i < names.size(); ++i) {
      add(names[i], shard.states[i].data());
    }
  }
  return view;
}

std::int64_t ShardedOptimizer::bytes(params::Tier tier) const {
  std::int64_t bytes = 0;
  const auto add = [&](const ShardHandle& handle) {
    bytes += handle.tier() == tier ? handle.bytes() : 0;
  };
  for (const Segment* segment : registry_.segments()) {
    const Shard& shard = shards_[segment->id];
    if (segment->dtype != at::kFloat) {
      add(shard.master);
    }
    for (const ShardHandle& state : shard.states) {
      add(state);
    }
  }
  return bytes;
}

}  // namespace shardwise::zero
