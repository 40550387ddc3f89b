#include "shardwise/zero/order.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::zero {
namespace {

std::string in_words(const OrderEntry& entry, const params::Registry& registry) {
  if (entry.unit < 0) {
    return "nothing";
  }
  return concat(comm::collective_name(static_cast<comm::Collective>(entry.collective)), " of ",
                registry.unit(entry.unit).name);
}

}  // namespace

std::string explain_order_difference(comm::Channel& channel, const OrderHash& hash,
                                     const params::Registry& registry, at::Device device) {
  std::vector<OrderEntry> mine = hash.last_entries();
  mine.resize(OrderHash::kKeptEntries);
  const auto bytes = static_cast<std::int64_t>(OrderHash::kKeptEntries * sizeof(OrderEntry));
  at::Tensor host = at::empty({bytes}, at::kByte);
  std::memcpy(host.data_ptr(), mine.data(), bytes);
  const at::Tensor all =
      at::empty({bytes * channel.size()}, at::TensorOptions(at::kByte).device(device));
  channel.all_gather(all, host.to(device), "the order of operations")->wait();
  const at::Tensor gathered = all.cpu();
  const auto* entries = static_cast<const OrderEntry*>(gathered.const_data_ptr());
  for (std::size_t i = 0; i < OrderHash::kKeptEntries; ++i) {
    for (int rank = 1; rank < channel.size(); ++rank) {
      const OrderEntry& theirs = entries[rank * OrderHash::kKeptEntries + i];
      if (!(theirs == entries[i])) {
        return concat("operation ", i, " of the step was ", in_words(theirs, registry), " on rank ",
                      rank, " but ", in_words(entries[i], registry), " on rank 0");
      }
    }
  }
  return "the difference lies beyond the operations that are compared one by one";
}

bool AcquireOrder::begin(bool training) {
  std::vector<int>& record = recorded_[mode_];
  const bool changed = diverged_ && !record.empty();
  if (diverged_) {
    record = std::move(current_);
  }
  current_.clear();
  diverged_ = false;
  mode_ = training ? 1 : 0;
  return changed;
}

void AcquireOrder::advance(int unit) {
  const std::vector<int>& record = recorded_[mode_];
  const std::size_t position = current_.size();
  if (position >= record.size() || record[position] != unit) {
    diverged_ = true;
  }
  current_.push_back(unit);
}

std::span<const int> AcquireOrder::ahead() const {
  if (diverged_) {
    return {};
  }
  return std::span<const int>(recorded_[mode_]).subspan(current_.size());
}

}  // namespace shardwise::zero
