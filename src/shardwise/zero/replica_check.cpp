#include "shardwise/zero/replica_check.h"

#include <ATen/ATen.h>

#include <vector>

#include "shardwise/base/check.h"

namespace shardwise::zero {
namespace {

using params::ParameterAddress;
using params::Range;
using params::Segment;

// int64 [1] of the part of a parameter that this rank holds: words of 8 bytes times odd numbers,
// modulo 2^64, so that a word that differs shows. Parameters and shards begin at multiples of 128
// bytes, and the padding behind a parameter is nobody's.
at::Tensor fingerprint(const ParameterAddress& address, int shard) {
  const Segment& segment = *address.segment;
  const at::Tensor held = segment.sharded ? segment.shard.data() : segment.full;
  const Range place =
      segment.sharded ? segment.layout.shard_of(shard) : Range{0, segment.layout.numel};
  const auto per_word = static_cast<std::int64_t>(sizeof(std::int64_t) / held.element_size());
  const Range own = address.parameter().place;
  const std::int64_t end = (own.end + per_word - 1) / per_word * per_word;
  const Range part = params::intersect({own.begin, end}, place);
  if (part.size() == 0) {
    return at::zeros({1}, held.options().dtype(at::kLong));
  }
  const at::Tensor words = held.narrow(0, part.begin - place.begin, part.size()).view(at::kLong);
  return at::sum(words * at::arange(1, 2 * words.numel(), 2, words.options())).reshape({1});
}

}  // namespace

void check_replicas(const comm::ShardChannels& channels, const params::Registry& registry) {
  const at::NoGradGuard no_grad;
  comm::Channel& everybody = channels.everybody();
  const int shards = channels.gather->size();
  std::vector<const ParameterAddress*> compared;
  std::vector<at::Tensor> prints;
  for (const ParameterAddress& address : registry.parameters()) {
    const bool has_copies = !address.segment->sharded || shards < everybody.size();
    if (has_copies && address.parameter().place.size() > 0) {
      compared.push_back(&address);
      prints.push_back(fingerprint(address, channels.gather->rank()));
    }
  }
  if (everybody.size() == 1 || compared.empty()) {
    return;
  }
  const at::Tensor mine = at::cat(prints);
  const at::Tensor all = at::empty({everybody.size() * mine.numel()}, mine.options());
  everybody.all_gather(all, mine, "the check that replicas agree")->wait();
  const at::Tensor host = all.cpu();
  const auto* prints_of_all = host.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < compared.size(); ++i) {
    for (int rank = 1; rank < everybody.size(); ++rank) {
      // Neighbours share one copy: the first holder of a shard is the rank modulo their number.
      const int first = compared[i]->segment->sharded ? rank % shards : 0;
      SW_USER_CHECK(
          CommunicationError,
          prints_of_all[rank * compared.size() + i] == prints_of_all[first * compared.size() + i],
          "the ranks have drifted apart (found by shardwise.check_replicas_every): ",
          compared[i]->parameter().name, " has other values on rank ", rank, " than on rank ",
          first,
          ". Something changed it on one of them alone: code that writes to parameters, "
          "or a faulty machine. Start again from weights that are known to be good.");
    }
  }
}

}  // namespace shardwise::zero
