#include "shardwise/comm/channel.h"

#include <ATen/ATen.h>

#include <chrono>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/comm/meeting_point.h"

namespace shardwise::comm {
namespace {

// Adds the time of a scope to both totals.
class Stopwatch {
 public:
  Stopwatch(double* total, double* other) : total_(total), other_(other) {}
  ~Stopwatch() {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    *total_ += elapsed.count();
    *other_ += elapsed.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* total_;
  double* other_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Runs `action` and turns whatever the backend throws into an error that says where it happened.
template <typename Action>
void with_context(const CollectiveEvent& event, const std::string& label, const char* stage,
                  bool& failed, Action&& action) {
  try {
    action();
  } catch (const Error&) {
    failed = true;
    throw;
  } catch (const std::exception& error) {
    failed = true;
    SW_FAIL(CommunicationError, "rank ", event.rank, " of ", event.world_size, ": ",
            collective_name(event.collective), " for ", event.who, " failed in its ", stage,
            " on the ", label,
            " channel. Most often another rank has died, is stuck, or runs "
            "collectives in another order: look at the first error of the other ranks. (",
            reason_of(error), ")");
  }
}

}  // namespace

class Channel::CountedWork : public Work {
 public:
  CountedWork(Channel* channel, WorkPtr work, CollectiveEvent event)
      : channel_(channel), work_(std::move(work)), event_(event) {}

  void wait() override {
    {
      double seconds = 0;
      const bool on_device = work_->span() != nullptr;
      double& total = channel_->traffic_[static_cast<int>(event_.collective)].seconds;
      const Stopwatch watch(&channel_->host_seconds_, on_device ? &seconds : &total);
      with_context(event_, channel_->label_, "wait", channel_->failed_, [&] { work_->wait(); });
    }
    const Finished finished = work_->finished();
    for (const auto& hook : channel_->live_hooks()) {
      if (hook->after_wait) {
        hook->after_wait(event_, finished);
      }
    }
  }

 private:
  Channel* channel_;
  WorkPtr work_;
  CollectiveEvent event_;
};

Channel::Channel(std::shared_ptr<Transport> transport, std::string label)
    : transport_(std::move(transport)), label_(std::move(label)) {}

std::vector<std::shared_ptr<CollectiveHook>> Channel::live_hooks() {
  std::vector<std::shared_ptr<CollectiveHook>> live;
  std::erase_if(hooks_, [&](const std::weak_ptr<CollectiveHook>& weak) {
    if (auto hook = weak.lock()) {
      live.push_back(std::move(hook));
      return false;
    }
    return true;
  });
  return live;
}

void Channel::count_spans() {
  while (!spans_.empty() && spans_.front().second->end.reached()) {
    const auto& [collective, span] = spans_.front();
    traffic_[static_cast<int>(collective)].seconds += span->end.seconds_since(span->begin);
    spans_.pop_front();
  }
}

template <typename Launch>
WorkPtr Channel::run(Collective collective, const at::Tensor& payload, std::string_view who,
                     Launch&& launch) {
  const CollectiveEvent event{collective,      who,
                              payload.numel(), static_cast<std::int64_t>(payload.nbytes()),
                              rank(),          size()};
  return run(event, 1.0, launch);
}

template <typename Launch>
WorkPtr Channel::run(const CollectiveEvent& event, double share, Launch&& launch) {
  for (const auto& hook : live_hooks()) {
    if (hook->before_launch) {
      hook->before_launch(event);
    }
  }
  const double payload_bytes = share * static_cast<double>(event.bytes);
  const double factor =
      (event.collective == Collective::kAllReduce ? 2.0 : 1.0) * (size() - 1) / size();
  Traffic& traffic = traffic_[static_cast<int>(event.collective)];
  traffic.calls += 1;
  traffic.elements += factor * share * static_cast<double>(event.elements);
  traffic.bytes += factor * payload_bytes;
  traffic.payload_bytes += payload_bytes;
  WorkPtr work;
  double seconds = 0;
  {
    const Stopwatch watch(&host_seconds_, &seconds);
    with_context(event, label_, "launch", failed_, [&] {
      transport_->announce(event);
      work = launch();
    });
  }
  if (auto span = work->span()) {
    count_spans();
    spans_.emplace_back(event.collective, std::move(span));
  } else {
    traffic.seconds += seconds;
  }
  return std::make_unique<CountedWork>(this, std::move(work), event);
}

WorkPtr Channel::all_gather(const at::Tensor& out, const at::Tensor& in, std::string_view who,
                            device::Event* ready) {
  SW_CHECK_EQ(out.numel(), in.numel() * size(), "all_gather for ", who);
  return run(Collective::kAllGather, out, who,
             [&] { return transport_->all_gather(out, in, ready); });
}

WorkPtr Channel::reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                                const Reduction& reduction, std::string_view who) {
  SW_CHECK_EQ(in.numel(), out.numel() * size(), "reduce_scatter for ", who);
  return run(Collective::kReduceScatter, in, who,
             [&] { return transport_->reduce_scatter(out, in, reduction); });
}

WorkPtr Channel::all_reduce(const at::Tensor& tensor, double scale, std::string_view who) {
  return run(Collective::kAllReduce, tensor, who,
             [&] { return transport_->all_reduce(tensor, scale); });
}

WorkPtr Channel::broadcast(const at::Tensor& tensor, int root, std::string_view who) {
  return run(Collective::kBroadcast, tensor, who,
             [&] { return transport_->broadcast(tensor, root); });
}

WorkPtr Channel::all_to_all(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in,
                            std::int64_t elements, std::string_view who) {
  SW_CHECK_EQ(static_cast<int>(in.size()), size(), "all_to_all for ", who);
  SW_CHECK_EQ(out.size(), in.size(), "all_to_all for ", who);
  const auto itemsize = static_cast<std::int64_t>(in[0].itemsize());
  const CollectiveEvent event{Collective::kAllToAll, who,    elements,
                              elements * itemsize,   rank(), size()};
  return run(event, 1.0 / size(), [&] { return transport_->all_to_all(out, in); });
}

HookHandle Channel::add_hook(CollectiveHook hook) {
  auto shared = std::make_shared<CollectiveHook>(std::move(hook));
  hooks_.emplace_back(shared);
  return HookHandle(std::move(shared));
}

}  // namespace shardwise::comm
