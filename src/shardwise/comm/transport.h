// Moves bytes between the ranks of a group. One interface for NCCL, Gloo, in-process threads and a
// group of one; see channel.h for what the engine uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/collective.h"
#include "shardwise/device/stream.h"

namespace shardwise::comm {

// A collective in flight.
class Work {
 public:
  virtual ~Work() = default;
  // CPU: blocks until the result is there. CUDA: the current stream waits, the host does not.
  // Throws CommunicationError on failure or time-out. Call it once.
  virtual void wait() = 0;
  // When it runs on the device, where the transport measures that; null where the host's time is
  // what it takes.
  virtual std::shared_ptr<const device::Span> span() const { return nullptr; }
  // How to see that it has ended, where wait() does not wait for that.
  virtual Finished finished() const { return nullptr; }
};

using WorkPtr = std::unique_ptr<Work>;

// How a reduction treats its result: out = (accumulate ? out : 0) + scale × Σ ranks.
struct Reduction {
  double scale = 1.0;
  bool accumulate = false;
};

// All ranks call the same functions in the same order. Tensors are contiguous, on the transport's
// device, and stay alive until the work was waited for. Not thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "nccl", "gloo", "threads", "single"
  // Switches the spans of later works on or off.
  virtual void measure(bool) {}
  // Told before each collective what it is, for errors that come later than the call.
  virtual void announce(const CollectiveEvent&) {}

  // out [size × n] = the `in` [n] of all ranks in rank order. `in` may be this rank's part of
  // `out`. On a GPU it begins behind `ready`, from where on `in` may be read and `out` written;
  // null: behind everything that was launched on the current stream.
  virtual WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in,
                             device::Event* ready = nullptr) = 0;
  // out [n] = this rank's part of the sum of all `in` [size × n]. `out` may be its part of `in`.
  // dtypes may differ. On the CPU the sum is taken in fp32 in rank order and rounded once.
  virtual WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                                 const Reduction& reduction) = 0;
  // tensor [any n] = scale × Σ ranks, in place. Same arithmetic as reduce_scatter.
  virtual WorkPtr all_reduce(const at::Tensor& tensor, double scale) = 0;
  virtual WorkPtr broadcast(const at::Tensor& tensor, int root) = 0;
  // out[r] = what rank r has in its in[this rank]. One tensor a rank on both sides, all of one
  // dtype, of any sizes that agree with the other ranks'.
  virtual WorkPtr all_to_all(const std::vector<at::Tensor>& out,
                             const std::vector<at::Tensor>& in) = 0;
  // Bytes of the transport's own buffers (copies received before they are summed).
  virtual std::int64_t scratch_bytes() const { return 0; }
};

// A group of one rank: copies.
std::unique_ptr<Transport> make_single_transport();

}  // namespace shardwise::comm
