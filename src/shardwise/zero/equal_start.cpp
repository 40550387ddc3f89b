#include "shardwise/zero/equal_start.h"

#include <ATen/ATen.h>

#include <cstring>
#include <sstream>
#include <string>

#include "shardwise/base/check.h"
#include "shardwise/base/hash.h"
#include "shardwise/base/log.h"
#include "shardwise/zero/record_exchange.h"

namespace shardwise::zero {
namespace {

constexpr const char* kPurpose = "the check that ranks start equal";

// One line a parameter: unit, name, shape, dtype, trainable.
std::string describe(const std::vector<params::UnitSpec>& specs) {
  std::ostringstream out;
  for (const params::UnitSpec& unit : specs) {
    for (const params::ParameterSpec& parameter : unit.parameters) {
      out << parameter.name << ' ' << parameter.tensor.sizes() << ' '
          << c10::toString(parameter.dtype) << (parameter.tensor.requires_grad() ? "" : " frozen")
          << " in unit " << unit.name << '\n';
    }
  }
  return out.str();
}

at::Tensor to_device(const void* data, std::size_t bytes, at::Device device) {
  at::Tensor host = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  std::memcpy(host.data_ptr(), data, bytes);
  return host.to(device);
}

template <typename Record>
std::vector<Record> exchange(comm::Channel& channel, const Record& mine, at::Device device) {
  return RecordExchange<Record>(channel, mine, device, kPurpose).read();
}

std::string broadcast_text(comm::Channel& channel, const std::string& text, at::Device device) {
  const auto sizes =
      exchange(channel, static_cast<std::int64_t>(channel.rank() == 0 ? text.size() : 0), device);
  at::Tensor bytes = channel.rank() == 0
                         ? to_device(text.data(), text.size(), device)
                         : at::empty({sizes[0]}, at::TensorOptions(at::kByte).device(device));
  channel.broadcast(bytes, 0, kPurpose)->wait();
  const at::Tensor host = bytes.cpu();
  return std::string(reinterpret_cast<const char*>(host.const_data_ptr<std::uint8_t>()),
                     static_cast<std::size_t>(host.numel()));
}

std::string first_difference(const std::string& mine, const std::string& rank0, int rank) {
  std::istringstream a(mine);
  std::istringstream b(rank0);
  std::string line_a;
  std::string line_b;
  for (int i = 0;; ++i) {
    const bool more_a = static_cast<bool>(std::getline(a, line_a));
    const bool more_b = static_cast<bool>(std::getline(b, line_b));
    if (!more_a && !more_b) {
      return "";
    }
    if (more_a != more_b || line_a != line_b) {
      return concat("entry ", i, " is '", more_a ? line_a : "(none)", "' on rank ", rank, " but '",
                    more_b ? line_b : "(none)", "' on rank 0");
    }
  }
}

struct Message {
  char text[512];
};

}  // namespace

void check_same_text(comm::Channel& channel, const std::string& text, const std::string& what,
                     const std::string& remedy, at::Device device) {
  if (channel.size() == 1) {
    return;
  }
  const auto hashes = exchange(channel, hash_bytes(text.data(), text.size()), device);
  bool equal = true;
  for (const std::uint64_t hash : hashes) {
    equal = equal && hash == hashes[0];
  }
  if (equal) {
    return;
  }
  const std::string rank0 = broadcast_text(channel, text, device);
  Message message{};
  const std::string difference = first_difference(text, rank0, channel.rank());
  std::strncpy(message.text, difference.c_str(), sizeof(message.text) - 1);
  for (const Message& received : exchange(channel, message, device)) {
    SW_USER_CHECK(UsageError, received.text[0] == '\0', "the ranks were given different ", what,
                  ": ", received.text, ". ", remedy);
  }
}

void check_same_parameters(comm::Channel& channel, const std::vector<params::UnitSpec>& specs,
                           at::Device device) {
  check_same_text(channel, describe(specs), "models (by parameters)",
                  "Build the same model on every rank.", device);
}

void ValueBroadcast::operator()(const params::Segment& segment, const at::Tensor& flat) {
  if (channel_.size() == 1 || flat.numel() == 0) {
    return;
  }
  const at::Tensor before = flat.clone();
  channel_.broadcast(flat, 0, segment.name)->wait();
  if (warned_ || at::equal(before, flat)) {
    return;
  }
  for (const params::Parameter& parameter : segment.parameters) {
    const auto range = [&](const at::Tensor& t) {
      return t.narrow(0, parameter.place.begin, parameter.place.size());
    };
    if (!at::equal(range(before), range(flat))) {
      warned_ = true;
      log_warning(concat("rank ", channel_.rank(),
                         " started with other values than rank 0, first in ", parameter.name,
                         "; rank 0's are used. Seed every rank alike, or load the "
                         "same weights, to silence this."));
      return;
    }
  }
}

}  // namespace shardwise::zero
