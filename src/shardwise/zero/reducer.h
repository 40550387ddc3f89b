// Takes gradients as autograd makes them and delivers them reduced where the optimizer reads them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/device/buffer_pool.h"
#include "shardwise/params/gradient_sink.h"
#include "shardwise/params/registry.h"
#include "shardwise/zero/order.h"
#include "shardwise/zero/plan.h"

namespace shardwise::zero {

struct ReducerOptions {
  ZeroPlan plan;
  // dtype in which gradients of 16-bit parameters are accumulated: their own or fp32.
  at::ScalarType accumulation_dtype = at::kFloat;
  double scale = 1.0;  // of the sum over the ranks of the shard axis
  // Of the ranks with the same shards: their mean is taken at the end of a window. Null: none.
  std::shared_ptr<comm::Channel> replicate = nullptr;
  std::int64_t max_in_flight_elements = 500'000'000;
  // dtype in which gradients travel where their segment names none; nothing: as they are.
  std::optional<at::ScalarType> travel_dtype;
};

// Stages 0–1: gradients of all micro-batches add up in one flat buffer a segment, which is reduced
// at the boundary; `.grad` is a view of it meanwhile. Stages 2–3: each micro-batch's gradients are
// written to a buffer of the pool, reduce-scattered when the unit is done, and added to the shard;
// `.grad` stays None. Not thread-safe.
class Reducer {
 public:
  Reducer(const params::Registry& registry, comm::Channel& channel, OrderHash& hash,
          at::Device device, ReducerOptions options);

  // One gradient of the present backward, of a parameter by its index. At stages 2–3 `gradient` is
  // kept until the unit is reduced and must not change until then. That of a parameter in a
  // frozen segment is added up on this rank, whole, until join(). Throws UsageError for a parameter
  // with a hook that wants to see its sum in `.grad`, where there is none (stages 2–3).
  void write(int parameter, const at::Tensor& gradient);
  // The same of some parameters as a product, rows below rows, which is carried out in their place
  // in the flat buffer. False where that cannot be, as where they do not lie one behind the other,
  // and nothing has happened.
  bool write_product(const std::vector<int>& parameters, const params::Product& product);
  // Stages 2–3: reduces the unit, also when nothing was written, so that ranks never differ. It is
  // launched by launch(), or when the next unit is reduced or its result is needed.
  void reduce(const params::Unit& unit);
  void launch();
  // Whether gradients of the unit were written after it was last reduced.
  bool holds_unreduced(const params::Unit& unit) const;
  // After this every gradient is reduced and waited for. Stages 0–1 communicate here.
  void finish();
  // After finish(): trainable segments that Registry::unfreeze has made get accumulators, and the
  // gradients that waited for them are reduced.
  void join(const std::vector<params::Segment*>& made);
  // Forgets all gradients, `.grad` of frozen parameters too: after the update, or when the user
  // zeroes them.
  void clear();
  // Allocates the accumulators anew in another dtype; only while there are no gradients.
  void set_accumulation_dtype(at::ScalarType dtype);

  // Gradients in the dtype in which they travel.
  at::Tensor to_travel(const at::Tensor& gradients, const params::Segment& segment) const;
  // The mean over ranks that hold the same shards. Does nothing without any.
  void average_over_replicas(const at::Tensor& tensor, const params::Segment& segment);
  // [shard_numel] of reduced gradients, zero where nothing was written; valid after finish().
  at::Tensor shard(const params::Segment& segment) const;
  // [layout.numel]; stage 0 only.
  at::Tensor whole(const params::Segment& segment) const;
  // Stages 0–1: a copy of this rank's own sum, before the boundary reduces it.
  at::Tensor unreduced_copy(const params::Segment& segment);
  double scale() const { return options_.scale; }
  // Stages 0–1: this rank's sum becomes value × factor.
  void overwrite(const params::Segment& segment, int slot, const at::Tensor& value, double factor);
  // The parameter has a gradient, whoever wrote it.
  void note_written(const params::Parameter& parameter) { written_[parameter.trainable] = 1; }
  // One byte a trainable parameter: 1 if it got a gradient on this rank since clear().
  const std::vector<std::uint8_t>& written() const { return written_; }
  bool empty() const { return !touched_; }

  std::int64_t accumulator_bytes() const;
  // Buffers of gradients being reduced, and what the transport received of them.
  std::int64_t in_flight_bytes() const {
    return pool_.allocated_bytes() + channel_.scratch_bytes();
  }

 private:
  struct State {
    at::Tensor whole;  // stages 0–1: the accumulator; 2–3: this micro-batch's buffer or undefined
    at::Tensor shard;  // stages 2–3: the accumulator; 0–1: a slice of `whole`
    std::vector<std::uint8_t> in_whole;  // slots whose range of `whole` is valid, or will be
    std::vector<at::Tensor> collected;   // by slot: gradients not yet in `whole` (stages 2–3)
    std::vector<at::Tensor> shown;       // by slot: what was made `.grad` (stages 0–1)
    std::int64_t collected_elements = 0;
    std::map<const void*, std::vector<at::Tensor>> views;  // of each buffer, by slot
    bool shard_holds_sum = false;
  };
  struct InFlight {
    at::Tensor buffer;
    comm::WorkPtr work;  // null until it is launched
    at::Tensor sent;     // `buffer` in the dtype in which it travels
    const params::Segment* segment = nullptr;
  };

  void write_slot(const params::Segment& segment, int slot, const at::Tensor& gradient);
  void begin_writing(const params::Segment& segment, int slot);
  void take_replaced();
  void show(const params::Segment& segment, int slot);
  static void leave_to_program(at::Tensor& shown);
  bool fits_product(const std::vector<int>& parameters, const params::Product& product) const;
  at::Tensor& waiting(int parameter);
  void drop_visible();
  void write_waiting(params::Segment& segment);
  void allocate();
  void allocate_segment(const params::Segment& segment);
  void flush_segment(const params::Segment& segment);
  const std::vector<at::Tensor>& views(const params::Segment& segment);
  at::ScalarType accumulator_dtype(const params::Segment& segment) const;
  void reduce_segment(const params::Segment& segment, int unit);
  void reduce_whole(const params::Segment& segment, int unit);
  void zero_unwritten(const params::Segment& segment);
  void drop_vanished(const params::Segment& segment);
  void wait_oldest();
  void wait_all();
  void average_replicas(const params::Segment& segment, int unit);

  const params::Registry& registry_;
  comm::Channel& channel_;
  OrderHash& hash_;
  ReducerOptions options_;
  device::BufferPool pool_;
  std::vector<State> states_;  // by segment id
  std::vector<std::uint8_t> written_;
  std::map<int, at::Tensor> waiting_;  // sums until join(), by parameter; see waiting()
  std::deque<InFlight> in_flight_;
  std::int64_t in_flight_elements_ = 0;
  bool touched_ = false;
  bool finished_ = false;
};

}  // namespace shardwise::zero
