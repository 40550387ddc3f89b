// Small records of plain data between ranks, on the host.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/comm/channel.h"

namespace shardwise::zero {

// Every rank's record, under way until read() waits for it. `Record` may be copied as bytes.
template <typename Record>
class RecordExchange {
 public:
  // Collective. `purpose` is for errors and outlives the exchange.
  RecordExchange(comm::Channel& channel, const Record& mine, at::Device device,
                 std::string_view purpose) {
    at::Tensor host = at::empty({kBytes}, at::kByte);
    std::memcpy(host.data_ptr(), &mine, kBytes);
    mine_ = host.to(device);
    all_ = at::empty({kBytes * channel.size()}, mine_.options());
    work_ = channel.all_gather(all_, mine_, purpose);
  }

  // In rank order. Waits; call it once.
  std::vector<Record> read() {
    work_->wait();
    const at::Tensor host = all_.cpu();
    std::vector<Record> records(static_cast<std::size_t>(host.numel() / kBytes));
    std::memcpy(records.data(), host.const_data_ptr(), static_cast<std::size_t>(host.numel()));
    return records;
  }

 private:
  static constexpr std::int64_t kBytes = sizeof(Record);
  at::Tensor mine_, all_;
  comm::WorkPtr work_;
};

}  // namespace shardwise::zero
