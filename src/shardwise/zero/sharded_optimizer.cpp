#include "shardwise/zero/sharded_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/config/optimizer_types.h"
#include "shardwise/ops/tensor_place.h"
#include "shardwise/zero/lamb.h"
#include "shardwise/zero/muon.h"

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
         a.parameter_dtype == b.parameter_dtype && a.gradient_dtype == b.gradient_dtype &&
         a.master_dtype == b.master_dtype && a.state_dtype == b.state_dtype;
}

// A copy of `count` items on the device, for the host; waits for it.
template <typename T>
at::Tensor to_host(const T* items, std::int64_t count, at::Device device) {
  const auto bytes = count * static_cast<std::int64_t>(sizeof(T));
  return at::from_blob(const_cast<T*>(items), {bytes}, at::TensorOptions(at::kByte).device(device))
      .to(at::kCPU);
}

float multiplier_of(const Boundary& boundary, at::Device device) {
  const at::Tensor decision = to_host(boundary.decision(), 1, device);
  return static_cast<const kernels::StepDecision*>(decision.const_data_ptr())->gradient_multiplier;
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
                                   const ShardedOptimizerOptions& options)
    : registry_(registry),
      reducer_(reducer),
      options_(options),
      rule_(optim::make_update_rule(options.rule)),
      shards_(registry.segments().size()) {
  SW_USER_CHECK(UsageError, !options.sixteen_bit_masters || rule_->takes_sixteen_bit_masters(),
                config::sixteen_bit_masters_rule(), ", but this optimizer ",
                options.rule.name == optim::kOutsideRule
                    ? "has a step() of its own"
                    : concat("follows the rule \"", options.rule.name, "\""),
                "; choose one of them, or set the key to false");
  const at::NoGradGuard no_grad;
  for (Segment* segment : registry_.segments()) {
    if (segment->trainable) {
      make_shard(*segment);
    }
  }
  make_tables();
}

void ShardedOptimizer::join(const std::vector<Segment*>& made) {
  const at::NoGradGuard no_grad;
  shards_.resize(registry_.segments().size());
  for (Segment* segment : made) {
    make_shard(*segment);
  }
  make_tables();
}

void ShardedOptimizer::make_shard(Segment& segment) {
  Shard& shard = shards_[segment.id];
  kernel_dtype(segment.dtype, segment.name);  // refuses other dtypes
  const bool sliced = options_.plan.shard_optimizer;
  shard.range = sliced ? segment.layout.shard_of(options_.rank) : Range{0, segment.layout.numel};
  shard.parameter = sliced ? segment.shard : ShardHandle(segment.full);
  const bool is_own_master = segment.dtype == at::kFloat || options_.sixteen_bit_masters;
  if (is_own_master) {
    shard.master = shard.parameter;
  } else {
    shard.master = segment.initial_fp32;
    segment.initial_fp32 = ShardHandle();
  }
  if (options_.offload) {
    offload(shard);
  }
  if (!segment.sharded) {
    segment.remember_versions();
  }
  const bool pinned = options_.offload && !shard.parameter.data().is_cpu();
  const auto like_master = shard.master.data()
                               .options()
                               .dtype(options_.sixteen_bit_states ? segment.dtype : at::kFloat)
                               .pinned_memory(pinned);
  for (std::size_t i = 0; i < state_names(segment).size(); ++i) {
    shard.states.emplace_back(
        at::full(shard.range.size(), options_.rule.initial_state, like_master),
        shard.master.tier());
  }
}

// The master moves to the host: pinned memory where the parameters are on a GPU.
void ShardedOptimizer::offload(Shard& shard) {
  const at::Tensor& parameter = shard.parameter.data();
  const bool on_gpu = !parameter.is_cpu();
  const auto host = [&](at::ScalarType type) {
    return ShardHandle(at::empty(parameter.sizes(), at::TensorOptions(type).pinned_memory(on_gpu)),
                       params::Tier::kPinnedHost);
  };
  const at::ScalarType dtype = parameter.scalar_type();
  const at::ScalarType master_dtype = shard.master.data().scalar_type();
  if (on_gpu || master_dtype == dtype) {
    const ShardHandle master = host(master_dtype);
    master.data().copy_(shard.master.data());
    shard.master = master;
  } else {
    shard.master = ShardHandle(shard.master.data(), params::Tier::kPinnedHost);
  }
  if (on_gpu && master_dtype != dtype) {
    shard.parameter_on_host = host(dtype);
  }
}

void ShardedOptimizer::make_tables() {
  own_ = make_table(/*for_norm=*/true);
  if (has_update_table()) {
    update_ = make_table(/*for_norm=*/false);
  }
}

ShardedOptimizer::Table ShardedOptimizer::make_table(bool for_norm) const {
  std::vector<kernels::Chunk> chunks;
  Table table;
  table.for_norm = for_norm;
  table.chunks_of.resize(registry_.segments().size());
  for (const Segment* segment : registry_.segments()) {
    if (segment->trainable && (for_norm || !options_.offload)) {
      table.device = segment->shard.data().device();
    }
    // Matrices of Muon count for the norm, and no kernel updates them.
    if (segment->trainable && (for_norm || !segment->whole_matrices)) {
      const std::size_t begin = chunks.size();
      append_chunks(*segment,
                    for_norm ? segment->layout.shard_of(options_.rank) : shards_[segment->id].range,
                    chunks);
      table.most_chunks += static_cast<std::int64_t>(chunks.size() - begin);
      std::erase_if(chunks, [](const kernels::Chunk& chunk) { return chunk.group < 0; });
      table.chunks_of[segment->id] = {static_cast<std::int64_t>(begin),
                                      static_cast<std::int64_t>(chunks.size())};
    }
  }
  table.chunk_count = static_cast<std::int64_t>(chunks.size());
  table.chunks = upload(chunks, table.device);
  refresh(table);
  return table;
}

// What the update of a segment reads, where it was reduced.
at::Tensor ShardedOptimizer::gradient(const Segment& segment) const {
  return options_.plan.shard_optimizer ? reducer_.shard(segment) : reducer_.whole(segment);
}

// Handles are asked for their data each time; the copy on the device is renewed when it has moved.
void ShardedOptimizer::refresh(Table& table) const {
  std::vector<kernels::ShardPointers> pointers(shards_.size());
  for (const Segment* segment : registry_.segments()) {
    if (!segment->trainable || segment->layout.numel == 0) {
      continue;
    }
    const Shard& shard = shards_[segment->id];
    kernels::ShardPointers& entry = pointers[segment->id];
    at::Tensor gradient = table.for_norm ? reducer_.shard(*segment) : this->gradient(*segment);
    if (!table.for_norm && shard.gradient_on_host.data().defined()) {
      gradient = shard.gradient_on_host.data();
    }
    entry.gradient = gradient.data_ptr();
    entry.gradient_dtype = kernel_dtype(gradient.scalar_type(), segment->name);
    // Memory of a GPU is out of reach for the CPU kernels of offload, and 16-bit masters have no
    // copy in the kernels; see run_on_host.
    const at::Tensor& parameter = shard.parameter.data();
    const bool copied_later =
        options_.offload && (!parameter.is_cpu() || options_.sixteen_bit_masters);
    entry.parameter = copied_later ? nullptr : parameter.data_ptr();
    entry.parameter_dtype = kernel_dtype(segment->dtype, segment->name);
    entry.master = shard.master.data().data_ptr();
    entry.master_dtype = kernel_dtype(shard.master.data().scalar_type(), segment->name);
    for (std::size_t i = 0; i < shard.states.size(); ++i) {
      entry.state[i] = shard.states[i].data().data_ptr();
      entry.state_dtype = kernel_dtype(shard.states[i].data().scalar_type(), segment->name);
    }
  }
  if (!std::equal(pointers.begin(), pointers.end(), table.uploaded.begin(), table.uploaded.end(),
                  same)) {
    table.pointers = upload(pointers, table.device);
    table.uploaded = std::move(pointers);
  }
  table.view = {.chunks = table.chunks.as<kernels::Chunk>(),
                .chunk_count = table.chunk_count,
                .segments = table.pointers.as<kernels::ShardPointers>(),
                .segment_count = static_cast<std::int64_t>(table.uploaded.size())};
}

const kernels::ChunkTable& ShardedOptimizer::norm_table() {
  refresh(own_);
  return own_.view;
}

void ShardedOptimizer::set_groups(const std::vector<optim::GroupValues>& groups) {
  for (const params::ParameterAddress& address : registry_.parameters()) {
    SW_USER_CHECK(UsageError, address.parameter().group < static_cast<int>(groups.size()),
                  "parameter ", address.parameter().name, " belongs to param_groups[",
                  address.parameter().group, "], but there are ", groups.size(),
                  " groups; put the group back");
  }
  if (moves_matrices()) {
    check_matrices(groups);
  }
  rule_->set_groups(groups);
}

void ShardedOptimizer::check_matrices(const std::vector<optim::GroupValues>& groups) const {
  for (const params::ParameterAddress& address : registry_.parameters()) {
    const params::Parameter& parameter = address.parameter();
    if (parameter.group < 0) {
      continue;
    }
    const optim::GroupValues& values = groups[parameter.group];
    const auto use_muon = values.find("use_muon");
    if (use_muon == values.end()) {
      continue;  // the rule says that it is missing
    }
    SW_USER_CHECK(UsageError, (use_muon->second != 0) == parameter.whole_matrix, "parameter ",
                  parameter.name, " is in param_groups[", parameter.group,
                  "], whose 'use_muon' is ", parameter.whole_matrix ? "false" : "true",
                  " while the engine was made with the opposite for it; set it back, or put the "
                  "parameter into another group");
  }
}

void ShardedOptimizer::assign_group(const std::vector<int>& parameters, int group) {
  for (const int parameter : parameters) {
    const params::ParameterAddress& address = registry_.parameters().at(parameter);
    address.segment->parameters[address.slot].group = group;
  }
  make_tables();
}

void ShardedOptimizer::check_unchanged() const {
  for (const Segment* segment : registry_.segments()) {
    if (segment->trainable && !segment->sharded && has_own_master(*segment)) {
      const params::Parameter* changed = segment->changed_in_place();
      SW_USER_CHECK(UsageError, changed == nullptr, "parameter ", changed->name,
                    " was changed in place since the last step; its master weight was not, "
                    "and would undo the change. Change weights with engine.load_state_dict().");
    }
  }
}

std::shared_ptr<device::Event> ShardedOptimizer::update(const kernels::Place& place,
                                                        Boundary& boundary,
                                                        const std::vector<int>& first) {
  std::shared_ptr<device::Event> between;
  if (moves_matrices()) {
    run_muon(boundary);
  }
  if (options_.rule.name == optim::kOutsideRule) {
    run_outside(boundary);
  } else if (options_.rule.name == optim::kLambRule) {
    run_lamb(boundary);
  } else if (options_.offload) {
    run_on_host(boundary);
  } else {
    Table& table = has_update_table() ? update_ : own_;
    refresh(table);
    const auto run = [&](const kernels::ChunkTable& chunks) {
      rule_->run(place, chunks, boundary.decision(), boundary.active(), boundary.steps());
    };
    if (first.empty()) {
      run(table.view);
    } else {
      between = run_in_two(table, first, run);
    }
  }
  note_update();
  return between;
}

std::shared_ptr<device::Event> ShardedOptimizer::run_in_two(
    const Table& table, const std::vector<int>& first,
    const std::function<void(const kernels::ChunkTable&)>& run) const {
  SW_CHECK(table.device == own_.device, "an event of ", table.device, " for work of ", own_.device);
  std::vector<char> goes_first(table.chunks_of.size());
  for (const Segment* segment : registry_.segments()) {
    goes_first[segment->id] = !segment->sharded;
  }
  for (const int unit : first) {
    for (const auto& segment : registry_.unit(unit).segments) {
      goes_first[segment->id] = true;
    }
  }
  // Segments that lie one behind the other are one launch.
  const auto run_half = [&](bool half) {
    params::Range run_of;
    const auto launch = [&] {
      if (run_of.size() > 0) {
        kernels::ChunkTable part = table.view;
        part.chunks += run_of.begin;
        part.chunk_count = run_of.size();
        run(part);
      }
    };
    for (const Segment* segment : registry_.segments()) {
      const params::Range chunks = table.chunks_of[segment->id];
      if (goes_first[segment->id] == half && chunks.size() > 0) {
        if (chunks.begin != run_of.end) {
          launch();
          run_of.begin = chunks.begin;
        }
        run_of.end = chunks.end;
      }
    }
    launch();
  };
  run_half(true);
  auto between = std::make_shared<device::Event>(table.device);
  between->record();
  run_half(false);
  return between;
}

// Copies of the masters in the training dtype become the parameters.
void ShardedOptimizer::write_parameters(bool matrices) {
  for (const Segment* segment : registry_.segments()) {
    if (!segment->trainable || segment->whole_matrices != matrices || !has_own_master(*segment)) {
      continue;
    }
    const Shard& shard = shards_[segment->id];
    const at::Tensor& rounded = shard.parameter_on_host.data();
    if (rounded.defined()) {
      rounded.copy_(shard.master.data());
    }
    shard.parameter.data().copy_(rounded.defined() ? rounded : shard.master.data(),
                                 /*non_blocking=*/true);
  }
}

void ShardedOptimizer::run_outside(Boundary& boundary) {
  if (boundary.result()->applied == 0) {
    return;
  }
  outside_(piece_gradients(boundary));
  write_parameters();
}

void ShardedOptimizer::run_lamb(Boundary& boundary) {
  if (boundary.result()->applied == 0) {
    return;
  }
  const std::vector<MasterPiece> masters = pieces();
  const std::vector<at::Tensor> gradients = piece_gradients(boundary);
  const at::Tensor steps = to_host(boundary.steps(), registry_.trainable_count(), own_.device);
  const std::vector<optim::LambGroup> groups = rule_->lamb_groups();
  std::vector<LambPiece> moving;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const params::ParameterAddress& address = registry_.parameters()[masters[i].parameter];
    const params::Parameter& parameter = address.parameter();
    if (gradients[i].defined() && parameter.group >= 0) {
      const Shard& shard = shards_[address.segment->id];
      moving.push_back(
          {.master = masters[i].data,
           .exp_avg = piece(shard.states[0].data(), address),
           .exp_avg_sq = piece(shard.states[1].data(), address),
           .gradient = gradients[i],
           .group = groups[parameter.group],
           .parameter = parameter.trainable,
           .step = static_cast<const std::int32_t*>(steps.data_ptr())[parameter.trainable]});
    }
  }
  lamb_update(moving, registry_.trainable_count(),
              options_.plan.shard_optimizer ? options_.channel : nullptr, own_.device);
  write_parameters();
}

// The matrices of Muon; a kernel moves the rest.
void ShardedOptimizer::run_muon(Boundary& boundary) {
  if (boundary.result()->applied == 0) {
    return;
  }
  const at::Tensor active = to_host(boundary.active(), registry_.trainable_count(), own_.device);
  const std::vector<optim::MuonGroup> groups = rule_->muon_groups();
  std::vector<MuonMatrix> matrices;
  for (const params::ParameterAddress& address : registry_.parameters()) {
    const params::Parameter& parameter = address.parameter();
    if (!address.segment->whole_matrices || parameter.group < 0 ||
        active.const_data_ptr<std::uint8_t>()[parameter.trainable] == 0) {
      continue;
    }
    const Shard& shard = shards_[address.segment->id];
    const Range mine = params::intersect(parameter.place, shard.range);
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, mine.size() == 0 ? 0 : mine.begin - shard.range.begin, mine.size());
    };
    matrices.push_back({.address = address,
                        .master = part(shard.master.data()),
                        .momentum = part(shard.states[0].data()),
                        .gradient = part(gradient(*address.segment)),
                        .group = groups[parameter.group]});
  }
  muon_update(matrices, multiplier_of(boundary, own_.device),
              options_.plan.shard_optimizer ? options_.channel : nullptr, own_.device);
  write_parameters(/*matrices=*/true);
}

void ShardedOptimizer::run_on_host(Boundary& boundary) {
  if (boundary.result()->applied == 0) {
    return;
  }
  // Waiting for the copies below also ends those of the last step from the buffers on the host.
  bool on_gpu = false;
  for (const Segment* segment : registry_.segments()) {
    if (segment->trainable && !segment->whole_matrices &&
        !shards_[segment->id].parameter.data().is_cpu()) {
      Shard& shard = shards_[segment->id];
      const at::Tensor gradient = this->gradient(*segment);
      const at::Tensor& held = shard.gradient_on_host.data();
      if (!held.defined() || held.scalar_type() != gradient.scalar_type()) {
        shard.gradient_on_host =
            ShardHandle(at::empty(gradient.sizes(),
                                  at::TensorOptions(gradient.scalar_type()).pinned_memory(true)),
                        params::Tier::kPinnedHost);
      }
      shard.gradient_on_host.data().copy_(gradient, /*non_blocking=*/true);
      on_gpu = true;
    }
  }
  const at::Device device = own_.device;
  const at::Tensor decision = to_host(boundary.decision(), 1, device);
  const at::Tensor active = to_host(boundary.active(), registry_.trainable_count(), device);
  const at::Tensor steps = to_host(boundary.steps(), registry_.trainable_count(), device);
  refresh(update_);
  rule_->run(ops::place_on(at::kCPU), update_.view,
             static_cast<const kernels::StepDecision*>(decision.data_ptr()),
             static_cast<const std::uint8_t*>(active.data_ptr()),
             static_cast<const std::int32_t*>(steps.data_ptr()));
  if (on_gpu || options_.sixteen_bit_masters) {
    write_parameters();
  }
}

// This rank's part of a parameter in `flat`, which covers the segment's update range.
at::Tensor ShardedOptimizer::piece(const at::Tensor& flat,
                                   const params::ParameterAddress& address) const {
  const params::Parameter& parameter = address.parameter();
  const Range& range = shards_[address.segment->id].range;
  const Range mine = params::intersect(parameter.place, range);
  if (!options_.plan.shard_optimizer) {
    return flat.as_strided(parameter.sizes, parameter.strides, mine.begin);
  }
  return mine.size() == 0 ? flat.narrow(0, 0, 0)
                          : flat.narrow(0, mine.begin - range.begin, mine.size());
}

std::vector<MasterPiece> ShardedOptimizer::pieces() const {
  std::vector<MasterPiece> pieces;
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const params::ParameterAddress& address = registry_.parameters()[i];
    if (address.parameter().trainable >= 0) {
      const at::Tensor piece = this->piece(shards_[address.segment->id].master.data(), address);
      if (piece.numel() > 0) {
        pieces.push_back({static_cast<int>(i), piece});
      }
    }
  }
  return pieces;
}

std::vector<at::Tensor> ShardedOptimizer::piece_gradients(const Boundary& boundary) const {
  const at::Tensor active = to_host(boundary.active(), registry_.trainable_count(), own_.device);
  const float multiplier = multiplier_of(boundary, own_.device);
  std::vector<at::Tensor> gradients;
  for (const MasterPiece& piece : pieces()) {
    const params::ParameterAddress& address = registry_.parameters()[piece.parameter];
    if (active.data_ptr<std::uint8_t>()[address.parameter().trainable] == 0) {
      gradients.emplace_back();
      continue;
    }
    const at::Tensor reduced = this->piece(gradient(*address.segment), address);
    gradients.push_back(at::empty_like(piece.data).copy_(reduced).mul_(multiplier));
  }
  return gradients;
}

void ShardedOptimizer::note_update() {
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

void ShardedOptimizer::gather_updated(comm::Channel& channel, OrderHash& hash,
                                      device::Event* ready) {
  if (!options_.plan.shard_optimizer) {
    return;
  }
  std::vector<comm::WorkPtr> work;
  for (const auto& unit : registry_.units()) {
    for (const auto& segment : unit->segments) {
      if (segment->trainable && !segment->sharded && segment->layout.numel > 0) {
        hash.add(comm::Collective::kAllGather, unit->id);
        work.push_back(
            channel.all_gather(segment->full, segment->shard.data(), segment->name, ready));
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

bool ShardedOptimizer::has_own_master(const Segment& segment) const {
  const Shard& shard = shards_[segment.id];
  return !shard.master.data().is_same(shard.parameter.data());
}

std::vector<std::string> ShardedOptimizer::state_names(const Segment& segment) const {
  return segment.whole_matrices ? rule_->matrix_state_names() : rule_->state_names();
}

ShardHandle ShardedOptimizer::state(const Segment& segment, const std::string& name) const {
  const auto names = state_names(segment);
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
    const auto names = state_names(*address.segment);
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
    if (!segment->trainable) {
      continue;
    }
    const Shard& shard = shards_[segment->id];
    if (has_own_master(*segment)) {
      add(shard.master);
    }
    for (const ShardHandle& state : shard.states) {
      add(state);
    }
    add(shard.gradient_on_host);
    add(shard.parameter_on_host);
  }
  return bytes;
}

}  // namespace shardwise::zero
