#include "shardwise/comm/thread_transport.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "shardwise/base/check.h"
#include "shardwise/comm/rank_order_sum.h"

namespace shardwise::comm {
namespace {

// What one rank brings to a collective.
struct Offer {
  Collective collective = Collective::kBroadcast;
  at::Tensor tensor;
  const std::vector<at::Tensor>* parts = nullptr;  // of an all-to-all, one a rank
};

// Meeting point of all ranks: everybody brings an offer, everybody sees all offers, everybody
// leaves.
class MeetingPoint {
 public:
  MeetingPoint(int size, std::chrono::milliseconds timeout) : timeout_(timeout), offers_(size) {}

  template <typename Use>
  void meet(int rank, Offer offer, Use&& use) {
    offers_[rank] = std::move(offer);
    arrive();
    std::string problem;
    for (std::size_t other = 0; other < offers_.size() && problem.empty(); ++other) {
      problem = difference(rank, static_cast<int>(other));
    }
    std::exception_ptr failure;
    try {
      SW_USER_CHECK(CommunicationError, problem.empty(), problem);  // rethrown after the meeting
      use(offers_);
    } catch (...) {
      failure = std::current_exception();
    }
    arrive();
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

 private:
  std::string difference(int rank, int other) const {
    const Offer& a = offers_[rank];
    const Offer& b = offers_[other];
    if (a.collective == b.collective && a.tensor.nbytes() == b.tensor.nbytes()) {
      return "";
    }
    return concat("rank ", rank, " calls ", collective_name(a.collective), " with ",
                  a.tensor.nbytes(), " bytes while rank ", other, " calls ",
                  collective_name(b.collective), " with ", b.tensor.nbytes(), " bytes");
  }

  void arrive() {
    std::unique_lock lock(mutex_);
    const auto generation = generation_;
    if (++arrived_ == offers_.size()) {
      arrived_ = 0;
      ++generation_;
      all_here_.notify_all();
      return;
    }
    const bool came = all_here_.wait_for(lock, timeout_, [&] { return generation_ != generation; });
    if (!came) {
      --arrived_;
      // The channel adds which collective this was, and for whom.
      throw std::runtime_error(concat("waited ", timeout_.count(), " ms for the other ranks"));
    }
  }

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::size_t arrived_ = 0;
  std::uint64_t generation_ = 0;
  std::vector<Offer> offers_;
};

class DoneWork : public Work {
 public:
  void wait() override {}
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<MeetingPoint> point, int rank, int size)
      : point_(std::move(point)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "threads"; }

  WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in, device::Event*) override {
    point_->meet(rank_, {Collective::kAllGather, in}, [&](const std::vector<Offer>& offers) {
      for (int r = 0; r < size_; ++r) {
        const at::Tensor part = out.narrow(0, r * in.numel(), in.numel());
        if (part.data_ptr() != offers[r].tensor.data_ptr()) {
          part.copy_(offers[r].tensor);
        }
      }
    });
    return std::make_unique<DoneWork>();
  }

  WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                         const Reduction& reduction) override {
    at::Tensor sum = reduction.accumulate ? out : at::empty_like(out);
    point_->meet(rank_, {Collective::kReduceScatter, in}, [&](const std::vector<Offer>& offers) {
      std::vector<at::Tensor> parts;
      for (const Offer& offer : offers) {
        parts.push_back(offer.tensor.narrow(0, rank_ * out.numel(), out.numel()));
      }
      sum_in_rank_order(sum, at::cat(parts), size_, reduction);
    });
    if (!reduction.accumulate) {
      out.copy_(sum);
    }
    return std::make_unique<DoneWork>();
  }

  WorkPtr all_reduce(const at::Tensor& tensor, double scale) override {
    at::Tensor sum = at::empty_like(tensor);
    point_->meet(rank_, {Collective::kAllReduce, tensor}, [&](const std::vector<Offer>& offers) {
      std::vector<at::Tensor> all;
      for (const Offer& offer : offers) {
        all.push_back(offer.tensor);
      }
      sum_in_rank_order(sum, at::cat(all), size_, {.scale = scale});
    });
    tensor.copy_(sum);
    return std::make_unique<DoneWork>();
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root) override {
    point_->meet(rank_, {Collective::kBroadcast, tensor}, [&](const std::vector<Offer>& offers) {
      if (rank_ != root) {
        tensor.copy_(offers[root].tensor);
      }
    });
    return std::make_unique<DoneWork>();
  }

  WorkPtr all_to_all(const std::vector<at::Tensor>& out,
                     const std::vector<at::Tensor>& in) override {
    const Offer offer{Collective::kAllToAll, at::empty({0}), &in};
    point_->meet(rank_, offer, [&](const std::vector<Offer>& offers) {
      for (int r = 0; r < size_; ++r) {
        out[r].copy_((*offers[r].parts)[rank_]);
      }
    });
    return std::make_unique<DoneWork>();
  }

 private:
  std::shared_ptr<MeetingPoint> point_;
  int rank_;
  int size_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_thread_transports(int world_size,
                                                               std::chrono::milliseconds timeout) {
  auto point = std::make_shared<MeetingPoint>(world_size, timeout);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < world_size; ++rank) {
    transports.push_back(std::make_shared<ThreadTransport>(point, rank, world_size));
  }
  return transports;
}

void run_ranks(int world_size, const std::function<void(const ShardChannels&)>& body,
               std::chrono::milliseconds timeout) {
  const auto gather = make_thread_transports(world_size, timeout);
  const auto reduce = make_thread_transports(world_size, timeout);
  std::vector<std::exception_ptr> errors(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body({std::make_shared<Channel>(gather[rank], "gather"),
              std::make_shared<Channel>(reduce[rank], "reduce")});
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto first = std::find_if(errors.begin(), errors.end(),
                                  [](const std::exception_ptr& error) { return error != nullptr; });
  if (first != errors.end()) {
    std::rethrow_exception(*first);
  }
}

}  // namespace shardwise::comm
