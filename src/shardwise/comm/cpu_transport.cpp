// Note [Reductions over Gloo]
// Gloo's reduce-scatter sends a whole all-reduce, adds 16-bit numbers in 16 bits, and from three
// ranks on its result depends on how a buffer is cut. So a reduction here is an all-to-all of bytes
// (each rank receives everybody's copy of its own part, N−1 of N parts cross the wire) and one sum
// over the copies in rank order, in fp32, rounded once. That is fewer bytes, and the same bits for
// every bucket size. An all-reduce is that plus an all-gather of the parts.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/comm/c10d_transport.h"
#include "shardwise/comm/rank_order_sum.h"
#include "shardwise/device/buffer_pool.h"

namespace shardwise::comm {
namespace {

using c10d::Backend;
using BackendWork = c10::intrusive_ptr<c10d::Work>;

class PlainWork : public Work {
 public:
  explicit PlainWork(BackendWork work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  BackendWork work_;
};

class CpuTransport : public Transport {
 public:
  CpuTransport(c10::intrusive_ptr<Backend> backend, std::chrono::milliseconds timeout)
      : backend_(std::move(backend)), timeout_(timeout), scratch_(at::kCPU) {}

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  std::string name() const override { return backend_->getBackendName(); }

  WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in) override {
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    at::Tensor output = as_bytes(out);
    at::Tensor input = as_bytes(in);
    return std::make_unique<PlainWork>(backend_->_allgather_base(output, input, options));
  }

  WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                         const Reduction& reduction) override {
    return std::make_unique<ReduceWork>(this, out, in, reduction);
  }

  WorkPtr all_reduce(const at::Tensor& tensor, double scale) override {
    const std::int64_t part = tensor.numel() / size();
    SW_CHECK_EQ(part * size(), tensor.numel());
    const at::Tensor mine = tensor.narrow(0, rank() * part, part);
    reduce_scatter(mine, tensor, {.scale = scale})->wait();
    return all_gather(tensor, mine);
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return std::make_unique<PlainWork>(backend_->broadcast(tensors, options));
  }

  void abort() override { backend_->abort(); }

 private:
  class ReduceWork : public Work {
   public:
    ReduceWork(CpuTransport* transport, at::Tensor out, const at::Tensor& in,
               const Reduction& reduction)
        : transport_(transport),
          out_(std::move(out)),
          received_(transport->scratch_.take(static_cast<std::int64_t>(in.nbytes()))),
          dtype_(in.scalar_type()),
          reduction_(reduction) {
      c10d::AllToAllOptions options;
      options.timeout = transport->timeout_;
      std::vector<std::int64_t> even;
      at::Tensor input = as_bytes(in);
      work_ = transport->backend_->alltoall_base(received_, input, even, even, options);
    }

    void wait() override {
      work_->wait();
      sum_in_rank_order(out_, received_.view(dtype_), transport_->size(), reduction_);
      transport_->scratch_.give_back(std::move(received_));
    }

   private:
    CpuTransport* transport_;
    at::Tensor out_;
    at::Tensor received_;
    at::ScalarType dtype_;
    Reduction reduction_;
    BackendWork work_;
  };

  c10::intrusive_ptr<Backend> backend_;
  std::chrono::milliseconds timeout_;
  device::BufferPool scratch_;
};

}  // namespace

std::unique_ptr<Transport> make_cpu_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                              std::chrono::milliseconds timeout) {
  return std::make_unique<CpuTransport>(std::move(backend), timeout);
}

}  // namespace shardwise::comm
