// Note [NCCL on our own streams]
// A c10d NCCL group runs asynchronous collectives on one internal stream and hands out Work
// objects. With asyncOp = false it launches on the current stream instead and returns no Work, so
// the order is ours: each transport has a stream of its own, which waits for the compute stream as
// it stands at the launch or stood earlier, and the work's event is what the compute stream waits
// for later. Nothing blocks the host. Buffers need no record_stream: they belong to pools that live
// as long as the engine.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/comm/c10d_transport.h"
#include "shardwise/comm/watchdog.h"
#include "shardwise/device/stream.h"

namespace shardwise::comm {
namespace {

class EventWork : public Work {
 public:
  EventWork(std::shared_ptr<device::Event> event, std::shared_ptr<const device::Span> span,
            const Watchdog& watchdog)
      : event_(std::move(event)), span_(std::move(span)), watchdog_(watchdog) {}
  void wait() override {
    watchdog_.check();
    event_->block_current_stream();
  }
  std::shared_ptr<const device::Span> span() const override { return span_; }
  Finished finished() const override {
    return [event = event_] { return event->reached(); };
  }

 private:
  std::shared_ptr<device::Event> event_;
  std::shared_ptr<const device::Span> span_;
  const Watchdog& watchdog_;
};

class NcclTransport : public Transport {
 public:
  NcclTransport(c10::intrusive_ptr<c10d::Backend> backend, at::Device device,
                std::chrono::milliseconds timeout)
      : backend_(std::move(backend)),
        device_(device),
        timeout_(timeout),
        stream_(device),
        watchdog_(device_, timeout, [this] { backend_->abort(); }) {}

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  std::string name() const override { return backend_->getBackendName(); }
  void measure(bool on) override { measures_ = on; }
  void announce(const CollectiveEvent& event) override {
    announced_ = concat("rank ", event.rank, " of ", event.world_size, ": ",
                        collective_name(event.collective), " for ", event.who);
  }

  WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in, device::Event* ready) override {
    const auto launch = [&] {
      c10d::AllgatherOptions options;
      options.asyncOp = false;
      options.timeout = timeout_;
      at::Tensor output = out;
      at::Tensor input = in;
      backend_->_allgather_base(output, input, options);
    };
    return ready ? on_stream(launch, *ready) : on_stream(launch);
  }

  WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                         const Reduction& reduction) override {
    return on_stream([&] {
      const bool direct = !reduction.accumulate && out.scalar_type() == in.scalar_type();
      at::Tensor output = direct ? out : scratch(out.numel(), in.scalar_type());
      at::Tensor input = in;
      c10d::ReduceScatterOptions options;
      options.reduceOp = average(reduction.scale) ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      options.asyncOp = false;
      options.timeout = timeout_;
      backend_->_reduce_scatter_base(output, input, options);
      if (!average(reduction.scale) && reduction.scale != 1.0) {
        output.mul_(reduction.scale);
      }
      if (reduction.accumulate) {
        out.add_(output);
      } else if (!direct) {
        out.copy_(output);
      }
    });
  }

  WorkPtr all_reduce(const at::Tensor& tensor, double scale) override {
    return on_stream([&] {
      c10d::AllreduceOptions options;
      options.reduceOp = average(scale) ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      options.asyncOp = false;
      options.timeout = timeout_;
      std::vector<at::Tensor> tensors{tensor};
      backend_->allreduce(tensors, options);
      if (!average(scale) && scale != 1.0) {
        tensor.mul_(scale);
      }
    });
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root) override {
    return on_stream([&] {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.asyncOp = false;
      options.timeout = timeout_;
      std::vector<at::Tensor> tensors{tensor};
      backend_->broadcast(tensors, options);
    });
  }

  WorkPtr all_to_all(const std::vector<at::Tensor>& out,
                     const std::vector<at::Tensor>& in) override {
    return on_stream([&] {
      c10d::AllToAllOptions options;
      options.asyncOp = false;
      options.timeout = timeout_;
      std::vector<at::Tensor> outputs = out;
      std::vector<at::Tensor> inputs = in;
      backend_->alltoall(outputs, inputs, options);
    });
  }

  std::int64_t scratch_bytes() const override {
    return scratch_.defined() ? static_cast<std::int64_t>(scratch_.nbytes()) : 0;
  }

 private:
  template <typename Launch>
  WorkPtr on_stream(Launch&& launch) {
    device::Event present(device_);
    present.record();
    return on_stream(launch, present);
  }

  template <typename Launch>
  WorkPtr on_stream(Launch&& launch, device::Event& ready) {
    watchdog_.check();
    const device::SideStream::Guard guard(stream_);
    ready.block_current_stream();
    const auto span = measures_ ? std::make_shared<device::Span>(device_) : nullptr;
    if (span) {
      span->begin.record();
    }
    launch();
    if (span) {
      span->end.record();
    }
    const auto done = std::make_shared<device::Event>(device_);
    done->record();
    watchdog_.add(announced_, [done] { return done->reached(); });
    return std::make_unique<EventWork>(done, span, watchdog_);
  }

  bool average(double scale) const { return scale == 1.0 / size(); }

  // Used on the transport's stream only, so one buffer serves all calls in turn.
  at::Tensor scratch(std::int64_t numel, at::ScalarType dtype) {
    const auto bytes = numel * static_cast<std::int64_t>(c10::elementSize(dtype));
    if (!scratch_.defined() || scratch_.numel() < bytes) {
      scratch_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
    }
    return scratch_.narrow(0, 0, bytes).view(dtype);
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  device::SideStream stream_;
  at::Tensor scratch_;
  std::string announced_;
  bool measures_ = false;
  Watchdog watchdog_;  // last: its thread ends before the rest goes
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                               at::Device device,
                                               std::chrono::milliseconds timeout) {
  return std::make_unique<NcclTransport>(std::move(backend), device, timeout);
}

}  // namespace shardwise::comm
