// Note [Collectives over Gloo]
// Gloo's own collectives have three flaws for us: its reduce-scatter sends a whole all-reduce, adds
// 16-bit numbers in 16 bits, and changes bits with the way a buffer is cut from three ranks on; and
// ranks that call different collectives either mix their data silently (equal sizes) or end the
// process from a thread of Gloo's (other sizes). So collectives here are made of point-to-point
// messages: each rank sends its part to every other one, N−1 of N parts in all, as a ring would.
// - A reduction receives everybody's copy of its own part and adds them once, in rank order, in
//   fp32, rounded once. The same bits for every bucket size.
// - Before its payload each rank sends a header that says which collective this is, for whom and
//   how large. Payloads carry a tag made from the header, so they never meet another collective's
//   receive; a header that differs is an error on both sides, at once, that names both.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/base/hash.h"
#include "shardwise/comm/c10d_transport.h"
#include "shardwise/comm/rank_order_sum.h"
#include "shardwise/device/buffer_pool.h"

namespace shardwise::comm {
namespace {

using c10d::Backend;
using BackendWork = c10::intrusive_ptr<c10d::Work>;

// What a rank says about its collective before it sends data.
struct Header {
  std::int32_t collective = 0;
  std::int32_t unused = 0;
  std::int64_t bytes = 0;
  char who[112] = {};
};

std::string describe(const Header& header) {
  return concat(collective_name(static_cast<Collective>(header.collective)), " for ", header.who,
                " (", header.bytes, " bytes)");
}

// Gloo's tags are 31 bits: headers and payloads share them half and half.
constexpr std::int32_t kPayloadTag = 1 << 30;
constexpr std::uint64_t kTagMask = kPayloadTag - 1;

constexpr std::chrono::milliseconds kDelivery{5000};  // of a header, to a rank that still runs

// Messages between this rank and all others within one collective.
class Exchange {
 public:
  Exchange(c10::intrusive_ptr<Backend> backend, std::chrono::milliseconds timeout,
           const Header& header, std::uint64_t sequence)
      : backend_(std::move(backend)),
        timeout_(timeout),
        mine_(header),
        header_tag_(static_cast<std::int32_t>(sequence & kTagMask)),
        payload_tag_(static_cast<std::int32_t>(
            kPayloadTag | (hash_bytes(&header, sizeof(header), sequence) & kTagMask))),
        headers_(at::empty({(rank_count() + 1) * static_cast<std::int64_t>(sizeof(Header))},
                           at::kByte)) {
    std::memcpy(header_slot(rank_count()).data_ptr(), &mine_, sizeof(Header));
    for (int rank = 0; rank < rank_count(); ++rank) {
      if (rank != backend_->getRank()) {
        post(header_sends_, header_slot(rank_count()), rank, header_tag_, /*sending=*/true);
        header_receives_.push_back({rank, receive(header_slot(rank), rank, header_tag_)});
      }
    }
  }

  // Both may be called for any rank but this one; the tensors are bytes and stay alive.
  void send_to(int rank, const at::Tensor& bytes) {
    post(sends_, bytes, rank, payload_tag_, /*sending=*/true);
  }
  void receive_from(int rank, const at::Tensor& bytes) {
    post(receives_, bytes, rank, payload_tag_, /*sending=*/false);
  }

  void wait() {
    for (const auto& [rank, work] : header_receives_) {
      work->wait(timeout_);
      check_header(rank);
    }
    for (const auto* works : {&receives_, &header_sends_, &sends_}) {
      for (const BackendWork& work : *works) {
        work->wait(timeout_);
      }
    }
  }

 private:
  int rank_count() const { return backend_->getSize(); }

  at::Tensor header_slot(int index) const {
    return headers_.narrow(0, index * static_cast<std::int64_t>(sizeof(Header)), sizeof(Header));
  }

  BackendWork receive(at::Tensor bytes, int rank, std::int32_t tag) {
    std::vector<at::Tensor> tensors{std::move(bytes)};
    return backend_->recv(tensors, rank, tag);
  }

  void post(std::vector<BackendWork>& works, const at::Tensor& bytes, int rank, std::int32_t tag,
            bool sending) {
    if (bytes.numel() == 0) {
      return;
    }
    std::vector<at::Tensor> tensors{bytes};
    works.push_back(sending ? backend_->send(tensors, rank, tag)
                            : backend_->recv(tensors, rank, tag));
  }

  void check_header(int rank) const {
    Header theirs;
    std::memcpy(&theirs, header_slot(rank).const_data_ptr(), sizeof(Header));
    if (std::memcmp(&theirs, &mine_, sizeof(Header)) == 0) {
      return;
    }
    deliver_headers();
    SW_FAIL(CommunicationError, "the ranks do different things: rank ", backend_->getRank(),
            " runs ", describe(mine_), " while rank ", rank, " runs ", describe(theirs),
            ". Every rank must run the same blocks in the same order.");
  }

  // The others are to read this rank's header before the connection ends with this exchange.
  void deliver_headers() const {
    for (const BackendWork& work : header_sends_) {
      try {
        work->wait(std::min(timeout_, kDelivery));
      } catch (const std::exception&) {
        continue;  // that rank has left
      }
    }
  }

  c10::intrusive_ptr<Backend> backend_;
  std::chrono::milliseconds timeout_;
  Header mine_;
  std::int32_t header_tag_;
  std::int32_t payload_tag_;
  at::Tensor headers_;  // one slot a rank, and this rank's own at the end
  std::vector<std::pair<int, BackendWork>> header_receives_;
  std::vector<BackendWork> receives_, header_sends_, sends_;
};

class GatherWork : public Work {
 public:
  explicit GatherWork(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  void wait() override { exchange_->wait(); }

 private:
  std::unique_ptr<Exchange> exchange_;
};

// Takes the result of other work over when waited for.
class CopyWork : public Work {
 public:
  CopyWork(WorkPtr work, at::Tensor to, at::Tensor from)
      : work_(std::move(work)), to_(std::move(to)), from_(std::move(from)) {}
  void wait() override {
    work_->wait();
    to_.copy_(from_);
  }

 private:
  WorkPtr work_;
  at::Tensor to_, from_;
};

// Where the parts for this rank land, and what becomes of them.
struct Landing {
  at::Tensor received;  // bytes of all ranks' parts
  at::ScalarType dtype;
  at::Tensor out;
  Reduction reduction;
};

// Sums the received parts when waited for.
class ReduceWork : public Work {
 public:
  ReduceWork(std::unique_ptr<Exchange> exchange, device::BufferPool& pool, int world,
             Landing landing)
      : exchange_(std::move(exchange)), pool_(pool), world_(world), landing_(std::move(landing)) {}

  void wait() override {
    exchange_->wait();
    sum_in_rank_order(landing_.out, landing_.received.view(landing_.dtype), world_,
                      landing_.reduction);
    pool_.give_back(std::move(landing_.received));
  }

 private:
  std::unique_ptr<Exchange> exchange_;
  device::BufferPool& pool_;
  int world_;
  Landing landing_;
};

class CpuTransport : public Transport {
 public:
  CpuTransport(c10::intrusive_ptr<Backend> backend, std::chrono::milliseconds timeout)
      : backend_(std::move(backend)), timeout_(timeout), scratch_(at::kCPU) {}

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  std::string name() const override { return backend_->getBackendName(); }

  void announce(const CollectiveEvent& event) override {
    header_ = Header{.collective = static_cast<std::int32_t>(event.collective),
                     .unused = 0,
                     .bytes = event.bytes,
                     .who = {}};
    event.who.copy(header_.who, sizeof(header_.who) - 1);
  }

  WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in, device::Event*) override {
    auto exchange = make_exchange();
    const at::Tensor mine = as_bytes(in);
    const at::Tensor all = as_bytes(out);
    for_each_part(all, [&](int rank, const at::Tensor& part) {
      if (rank != this->rank()) {
        exchange->send_to(rank, mine);
        exchange->receive_from(rank, part);
      } else if (part.data_ptr() != mine.data_ptr()) {
        part.copy_(mine);
      }
    });
    return std::make_unique<GatherWork>(std::move(exchange));
  }

  WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                         const Reduction& reduction) override {
    auto exchange = make_exchange();
    const at::Tensor source = as_bytes(in);
    at::Tensor received = scratch_.take(source.numel(), at::kByte);
    std::vector<at::Tensor> landing = received.chunk(size());
    for_each_part(source, [&](int rank, const at::Tensor& part) {
      if (rank == this->rank()) {
        landing[rank].copy_(part);
      } else if (part.numel() > 0) {
        exchange->send_to(rank, part);
        exchange->receive_from(rank, landing[rank]);
      }
    });
    return std::make_unique<ReduceWork>(
        std::move(exchange), scratch_, size(),
        Landing{std::move(received), in.scalar_type(), out, reduction});
  }

  WorkPtr all_reduce(const at::Tensor& tensor, double scale) override {
    const std::int64_t part = (tensor.numel() + size() - 1) / size();
    const bool even = part * size() == tensor.numel();
    const at::Tensor whole = even ? tensor : at::zeros({part * size()}, tensor.options());
    const at::Tensor used = whole.narrow(0, 0, tensor.numel());
    if (!even) {
      used.copy_(tensor);
    }
    const at::Tensor mine = whole.narrow(0, rank() * part, part);
    reduce_scatter(mine, whole, {.scale = scale})->wait();
    WorkPtr work = all_gather(whole, mine, /*ready=*/nullptr);
    return even ? std::move(work) : std::make_unique<CopyWork>(std::move(work), tensor, used);
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root) override {
    auto exchange = make_exchange();
    const at::Tensor bytes = as_bytes(tensor);
    for (int other = 0; other < size() && rank() == root; ++other) {
      if (other != root) {
        exchange->send_to(other, bytes);
      }
    }
    if (rank() != root) {
      exchange->receive_from(root, bytes);
    }
    return std::make_unique<GatherWork>(std::move(exchange));
  }

  WorkPtr all_to_all(const std::vector<at::Tensor>& out,
                     const std::vector<at::Tensor>& in) override {
    auto exchange = make_exchange();
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == this->rank()) {
        out[rank].copy_(in[rank]);
      } else {
        exchange->send_to(rank, as_bytes(in[rank]));
        exchange->receive_from(rank, as_bytes(out[rank]));
      }
    }
    return std::make_unique<GatherWork>(std::move(exchange));
  }

  std::int64_t scratch_bytes() const override { return scratch_.allocated_bytes(); }

 private:
  std::unique_ptr<Exchange> make_exchange() {
    return std::make_unique<Exchange>(backend_, timeout_, header_, sequence_++);
  }

  template <typename Use>
  void for_each_part(const at::Tensor& bytes, Use&& use) const {
    const std::int64_t part = bytes.numel() / size();
    for (int rank = 0; rank < size(); ++rank) {
      use(rank, bytes.narrow(0, rank * part, part));
    }
  }

  c10::intrusive_ptr<Backend> backend_;
  std::chrono::milliseconds timeout_;
  device::BufferPool scratch_;
  Header header_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_cpu_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                              std::chrono::milliseconds timeout) {
  return std::make_unique<CpuTransport>(std::move(backend), timeout);
}

}  // namespace shardwise::comm
