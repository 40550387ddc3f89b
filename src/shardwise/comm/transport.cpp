#include "shardwise/comm/transport.h"

#include <ATen/ATen.h>

#include "shardwise/comm/collective.h"

namespace shardwise::comm {

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllGather: return "all_gather";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kAllToAll: return "all_to_all";
  }
  return "unknown";
}

namespace {

class DoneWork : public Work {
 public:
  void wait() override {}
};

class SingleTransport : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }

  WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in, device::Event*) override {
    if (!out.is_alias_of(in)) {
      out.copy_(in);
    }
    return std::make_unique<DoneWork>();
  }

  WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                         const Reduction& reduction) override {
    if (reduction.accumulate) {
      out.add_(in, reduction.scale);
    } else {
      if (!out.is_alias_of(in)) {
        out.copy_(in);
      }
      if (reduction.scale != 1.0) {
        out.mul_(reduction.scale);
      }
    }
    return std::make_unique<DoneWork>();
  }

  WorkPtr all_reduce(const at::Tensor& tensor, double scale) override {
    if (scale != 1.0) {
      tensor.mul_(scale);
    }
    return std::make_unique<DoneWork>();
  }

  WorkPtr broadcast(const at::Tensor&, int) override { return std::make_unique<DoneWork>(); }

  WorkPtr all_to_all(const std::vector<at::Tensor>& out,
                     const std::vector<at::Tensor>& in) override {
    out[0].copy_(in[0]);
    return std::make_unique<DoneWork>();
  }
};

}  // namespace

std::unique_ptr<Transport> make_single_transport() { return std::make_unique<SingleTransport>(); }

}  // namespace shardwise::comm
