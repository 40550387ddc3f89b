#include "shardwise/zero/early_shard.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <malloc.h>

#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/params/registry.h"

namespace shardwise::zero {
namespace {

// Shards lie between the freed whole tensors that they were cut from, which the allocator seldom
// fits the next one into. From this size on it is worth a walk to give those pages back.
constexpr std::int64_t kLarge = std::int64_t{1} << 20;

}  // namespace

EarlyShard::EarlyShard(std::shared_ptr<comm::Channel> channel, at::Device device,
                       const at::Tensor& parameter, at::ScalarType dtype, std::string name)
    : channel_(std::move(channel)),
      device_(device),
      name_(std::move(name)),
      sizes_(parameter.sizes().vec()),
      strides_(params::dense_strides(parameter)),
      layout_(params::lay_out({parameter.numel()},
                              static_cast<std::int64_t>(c10::elementSize(dtype)),
                              channel_->size())) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  const auto options = parameter.options().dtype(dtype).requires_grad(false);
  shard_ = at::empty({layout_.shard_numel}, options);
  at::Tensor flat = at::zeros({layout_.numel}, options);
  flat.as_strided(sizes_, strides_, 0).copy_(parameter.detach());
  share(flat, 0);
  storage_ = params::FlatStorage(
      layout_.numel, dtype, parameter.device(),
      concat("parameter ", name_,
             " is released (shardwise.zero.Init keeps it sharded): read it inside "
             "shardwise.zero.GatheredParameters, or give its model to shardwise.initialize()"));
  const auto freed = static_cast<std::int64_t>(parameter.nbytes());
  parameter.set_data(storage_.view(sizes_, strides_, 0));
  flat.reset();
  if (freed >= kLarge) {
    malloc_trim(0);
  }
}

// Rank `root`'s values for everybody, then cut.
void EarlyShard::share(const at::Tensor& flat, int root) {
  const params::Range mine = layout_.shard_of(channel_->rank());
  if (flat.numel() == 0) {
    return;
  }
  const at::Tensor sent = flat.to(device_);
  channel_->broadcast(sent, root, name_)->wait();
  if (!sent.is_same(flat)) {
    flat.copy_(sent);
  }
  shard_.copy_(flat.narrow(0, mine.begin, mine.size()));
}

at::Tensor EarlyShard::gather() const {
  SW_USER_CHECK(UsageError, shard_.defined(), "parameter ", name_,
                " was given to an engine that could not be made; build the model anew");
  if (layout_.numel == 0) {
    return at::empty({0}, shard_.options());
  }
  const at::Tensor whole = at::empty({layout_.numel}, shard_.options().device(device_));
  channel_->all_gather(whole, shard_.to(device_), name_)->wait();
  return whole.to(shard_.device());
}

std::vector<at::Tensor> EarlyShard::flats() const {
  return {whole_.numel() == 0 ? at::Tensor() : whole_};
}

std::string EarlyShard::objection(int modifier) {
  const Finding mine = finding_of(levels_.change(flats()), modifier);
  const auto found = agreement_.objection(*channel_, mine, device_);
  return found ? in_words(*found, "parameter " + name_, "the change is lost") : "";
}

void EarlyShard::open(int modifier) {
  levels_.check_modifier(modifier, "parameter " + name_);
  if (!is_open()) {
    whole_ = gather();
    storage_.point_at(whole_);
  } else if (modifier != kReadOnly) {
    const std::string complaint = objection(modifier);
    SW_USER_CHECK(UsageError, complaint.empty(), complaint);
  }
  levels_.enter(modifier, flats());
}

void EarlyShard::close(bool discard) {
  const at::NoGradGuard no_grad;
  std::string complaint;
  if (!discard) {
    complaint = objection(levels_.modifier());
  }
  const int modifier = levels_.leave();
  if (!discard && complaint.empty() && modifier != kReadOnly) {
    share(whole_, modifier);
    levels_.accept(flats());
  }
  if (!is_open()) {
    storage_.release();
    whole_ = at::Tensor();
  }
  SW_USER_CHECK(UsageError, complaint.empty(), complaint);
}

at::Tensor EarlyShard::take() {
  const at::NoGradGuard no_grad;
  SW_USER_CHECK(UsageError, !is_open(),
                "initialize() was called inside GatheredParameters, which "
                "holds ",
                name_, "; leave the context first");
  const at::Tensor whole = gather();
  shard_ = at::Tensor();
  return whole.as_strided(sizes_, strides_, 0);
}

}  // namespace shardwise::zero
