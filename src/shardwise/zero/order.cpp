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

// Unfrozen parameters come in ascending order, so that the first entry that differs names one that
// the other rank lacks.
std::string difference_in_words(std::size_t position, int rank, const OrderEntry& theirs,
                                const OrderEntry& first, const params::Registry& registry) {
  const auto unfrozen = [](const OrderEntry& entry) {
    return entry.collective == OrderEntry::kUnfrozen;
  };
  if (!unfrozen(theirs) && !unfrozen(first)) {
    return concat("operation ", position, " of the step was ", in_words(theirs, registry),
                  " on rank ", rank, " but ", in_words(first, registry), " on rank 0");
  }
  const bool theirs_alone = !unfrozen(first) || (unfrozen(theirs) && theirs.unit < first.unit);
  return concat("parameter ",
                registry.parameters()[(theirs_alone ? theirs : first).unit].parameter().name,
                ", frozen until now, requires gradients on rank ", theirs_alone ? rank : 0,
                " but not on rank ", theirs_alone ? 0 : rank);
}

}  // namespace

void OrderHash::add_unfrozen(const std::set<int>& parameters) {
  std::vector<OrderEntry> first;
  for (const int parameter : parameters) {
    first.push_back({OrderEntry::kUnfrozen, parameter});
  }
  value_ = hash_bytes(first.data(), first.size() * sizeof(OrderEntry), value_);
  entries_.insert(entries_.begin(), first.begin(), first.end());
  entries_.resize(std::min(entries_.size(), kKeptEntries));
}

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
        return difference_in_words(i, rank, theirs, entries[i], registry);
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

std::span<const int> AcquireOrder::training() const {
  return mode_ == 1 && diverged_ ? current_ : recorded_[1];
}

}  // namespace shardwise::zero
