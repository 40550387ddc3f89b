// CUDA against the CPU twin on the same data: the same bits, except for sums of squares, whose
// order differs. Skips where no device is present.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <random>
#include <type_traits>

#include "shardwise/kernels/boundary.h"
#include "shardwise/kernels/cuda/cuda_test.h"
#include "shardwise/kernels/dispatch.h"
#include "shardwise/kernels/reduce.h"
#include "shardwise/kernels/test_reference.h"
#include "shardwise/kernels/update.h"

namespace shardwise::kernels {
namespace {

using testing::Array;
using testing::require;
using testing::TestShard;

// A copy of host memory on the device, `shift` bytes into an allocation.
class OnDevice {
 public:
  OnDevice(const void* host, std::size_t bytes, std::size_t shift = 0)
      : bytes_(bytes), shift_(shift) {
    require(cudaMalloc(&base_, bytes + shift + 1));
    require(cudaMemcpy(data(), host, bytes, cudaMemcpyHostToDevice));
    require(cudaDeviceSynchronize());  // the copy's last part may still be on its way
  }
  template <typename T>
  explicit OnDevice(const std::vector<T>& host) : OnDevice(host.data(), host.size() * sizeof(T)) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(base_); }

  void* data() const { return static_cast<char*>(base_) + shift_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data());
  }
  void download(void* host) const {
    require(cudaMemcpy(host, data(), bytes_, cudaMemcpyDeviceToHost));
  }
  template <typename T>
  T value() const {
    T result;
    download(&result);
    return result;
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_;
  std::size_t shift_;
};

class KernelsCuda : public testing::CudaTest {};

struct Case {
  DType gradient;
  DType parameter;
  bool shares_master;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (DType gradient : testing::all_dtypes()) {
    for (DType parameter : testing::all_dtypes()) {
      cases.push_back({gradient, parameter, false});
    }
    cases.push_back({gradient, DType::kFloat32, true});
  }
  return cases;
}

// Chunk i of group i mod `groups`; parameter 6 does not move.
struct StepInputs {
  std::vector<std::uint8_t> active;
  std::vector<std::int32_t> steps;
  StepDecision decision;

  explicit StepInputs(std::size_t parameters, float multiplier, int apply)
      : active(parameters, 1), steps(parameters), decision{multiplier, apply} {
    for (std::size_t i = 0; i < parameters; ++i) {
      steps[i] = i % 4 == 0 ? 1 : static_cast<std::int32_t>(17 * i + 2);
    }
    active[6] = 0;
  }
};

std::vector<AdamGroup> adam_groups(int count) {
  std::vector<AdamGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back(
        {1e-2 / (i + 1), i % 3 == 2 ? 0.3 : 0.9, 0.99, 1e-8, 0.1, i % 2 == 0, i % 5 != 4});
  }
  return groups;
}

std::vector<SgdGroup> sgd_groups(int count) {
  std::vector<SgdGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back(
        {0.1 / (i + 1), i % 3 * 0.45, i % 3 == 1 ? 0.2 : 0.0, i % 2 * 0.05, i % 3 == 2});
  }
  return groups;
}

std::vector<LionGroup> lion_groups(int count) {
  std::vector<LionGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back({1e-2 / (i + 1), i % 3 == 2 ? 0.3 : 0.9, 0.99, i % 2 * 0.1});
  }
  return groups;
}

std::vector<AdagradGroup> adagrad_groups(int count) {
  std::vector<AdagradGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back({1e-2 / (i + 1), i % 3 * 0.1, 1e-8, i % 2 * 0.1});
  }
  return groups;
}

template <typename Group>
void run_on_cpu(TestShard& shard, const std::vector<Group>& groups, const StepInputs& inputs) {
  const ShardPointers pointers = shard.pointers();
  const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                         &pointers, 1};
  update(Place{}, table, groups, &inputs.decision, inputs.active.data(), inputs.steps.data());
}

// `shift`: the gradient starts that many bytes past an aligned address.
template <typename Group>
void run_on_device(const Place& place, TestShard& shard, const std::vector<Group>& groups,
                   const StepInputs& inputs, std::size_t shift) {
  const OnDevice master(shard.master.bytes);
  const OnDevice state0(shard.state0.bytes);
  const OnDevice state1(shard.state1.bytes);
  const OnDevice gradient(shard.gradient.data(), shard.gradient.bytes.size(), shift);
  const OnDevice parameter(shard.parameter.bytes);
  ShardPointers pointers = shard.pointers();
  pointers.master = master.data();
  pointers.state[0] = state0.data();
  pointers.state[1] = state1.data();
  pointers.gradient = gradient.data();
  pointers.parameter = shard.parameter_is_master ? master.data() : parameter.data();
  const OnDevice segments(&pointers, sizeof(pointers));
  const OnDevice chunks(shard.chunks);
  const OnDevice decision(&inputs.decision, sizeof(StepDecision));
  const OnDevice active(inputs.active);
  const OnDevice steps(inputs.steps);
  const ChunkTable table{chunks.as<Chunk>(), static_cast<std::int64_t>(shard.chunks.size()),
                         segments.as<ShardPointers>(), 1};
  update(place, table, groups, decision.as<StepDecision>(), active.as<std::uint8_t>(),
         steps.as<std::int32_t>());
  require(cudaStreamSynchronize(static_cast<cudaStream_t>(place.stream)));
  master.download(shard.master.data());
  state0.download(shard.state0.data());
  state1.download(shard.state1.data());
  parameter.download(shard.parameter.data());
}

void expect_same_bits(const TestShard& a, const TestShard& b) {
  EXPECT_TRUE(a.master == b.master);
  EXPECT_TRUE(a.state0 == b.state0);
  EXPECT_TRUE(a.state1 == b.state1);
  EXPECT_TRUE(a.parameter == b.parameter);
}

template <typename Group>
void compare_shards(const Place& place, const TestShard& before, const std::vector<Group>& groups,
                    int apply, std::size_t shift) {
  const StepInputs inputs(before.chunks.size(), 0.37F, apply);
  TestShard on_cpu = before;
  TestShard on_device = before;
  run_on_cpu(on_cpu, groups, inputs);
  run_on_device(place, on_device, groups, inputs, shift);
  expect_same_bits(on_cpu, on_device);
  EXPECT_EQ(before.master == on_device.master, apply == 0);
}

template <typename Group>
void compare_updates(const Place& place, const std::vector<Group>& groups, int apply) {
  for (const Case& c : all_cases()) {
    for (std::size_t shift : {std::size_t{0}, static_cast<std::size_t>(element_size(c.gradient))}) {
      TestShard before(c.gradient, c.parameter, c.shares_master, static_cast<int>(groups.size()));
      if constexpr (std::is_same_v<Group, AdagradGroup>) {
        before.state0 = before.state1;  // sums are positive
      }
      compare_shards(place, before, groups, apply, shift);
    }
  }
  for (const testing::Narrow& c : testing::all_narrow()) {
    TestShard before(c.gradient, c.master, true, static_cast<int>(groups.size()));
    before.state0 = before.state1;
    before.narrow(c.master, c.state);
    compare_shards(place, before, groups, apply, 0);
  }
}

TEST_F(KernelsCuda, AdamHasTheBitsOfTheCpu) { compare_updates(place_, adam_groups(3), 1); }

TEST_F(KernelsCuda, SgdHasTheBitsOfTheCpu) { compare_updates(place_, sgd_groups(3), 1); }

TEST_F(KernelsCuda, LionHasTheBitsOfTheCpu) { compare_updates(place_, lion_groups(3), 1); }

TEST_F(KernelsCuda, AdagradHasTheBitsOfTheCpu) { compare_updates(place_, adagrad_groups(3), 1); }

TEST_F(KernelsCuda, SkippedStepWritesNothing) {
  compare_updates(place_, adam_groups(3), 0);
  compare_updates(place_, sgd_groups(3), 0);
}

TEST_F(KernelsCuda, MoreGroupsThanOneLaunchTakes) {
  TestShard before(DType::kBFloat16, DType::kBFloat16, false, 1);
  const std::vector<AdamGroup> groups = adam_groups(70);
  for (std::size_t i = 0; i < before.chunks.size(); ++i) {
    before.chunks[i].group = static_cast<std::int32_t>(69 - 6 * i);  // 69 … 9
  }
  const StepInputs inputs(before.chunks.size(), 1.0F, 1);
  TestShard on_cpu = before;
  TestShard on_device = before;
  run_on_cpu(on_cpu, groups, inputs);
  run_on_device(place_, on_device, groups, inputs, 0);
  expect_same_bits(on_cpu, on_device);
}

TEST_F(KernelsCuda, SumOfSquares) {
  for (DType dtype : testing::all_dtypes()) {
    for (std::size_t shift : {std::size_t{0}, static_cast<std::size_t>(element_size(dtype))}) {
      TestShard shard(dtype, DType::kFloat32, true, 1);
      shard.gradient.set(shard.chunks[5].offset + 32, HUGE_VALF);
      ShardPointers pointers = shard.pointers();
      const auto count = static_cast<std::int64_t>(shard.chunks.size());
      std::vector<double> expected(count);
      std::vector<double> found(count, -1.0);
      sum_of_squares(Place{}, ChunkTable{shard.chunks.data(), count, &pointers, 1},
                     expected.data());
      const OnDevice gradient(shard.gradient.data(), shard.gradient.bytes.size(), shift);
      pointers.gradient = gradient.data();
      const OnDevice segments(&pointers, sizeof(pointers));
      const OnDevice chunks(shard.chunks);
      const OnDevice partials(found);
      sum_of_squares(place_, ChunkTable{chunks.as<Chunk>(), count, segments.as<ShardPointers>(), 1},
                     partials.as<double>());
      wait();
      partials.download(found.data());
      for (std::int64_t i = 0; i < count; ++i) {
        if (i == 5) {
          EXPECT_FALSE(std::isfinite(found[i]));
        } else {
          EXPECT_NEAR(found[i], expected[i], 1e-14 * expected[i]);
        }
      }
    }
  }
}

// Both sides fill their records and decide, step after step, each with its own state.
struct BoundarySide {
  LossScaleState state;
  std::vector<std::int32_t> steps;
  std::vector<std::uint8_t> active;
  std::vector<std::uint8_t> records;
  StepDecision decision;
  BoundaryResult result;
};

struct BoundaryInputs {
  std::vector<std::vector<double>> partials;       // [rank][chunk]
  std::vector<std::vector<std::uint8_t>> written;  // [rank][parameter]
  std::vector<std::uint64_t> hashes;               // [rank]
  std::vector<double> weights;                     // [rank]
  std::vector<Chunk> chunks;
  BoundaryRule rule;

  int world() const { return static_cast<int>(partials.size()); }
  std::int64_t parameters() const { return static_cast<std::int64_t>(written[0].size()); }
  std::int64_t chunk_count() const { return static_cast<std::int64_t>(chunks.size()); }
};

BoundaryInputs random_boundary(std::mt19937& random, int world, int parameters, int chunk_count) {
  BoundaryInputs in;
  for (int rank = 0; rank < world; ++rank) {
    in.partials.emplace_back();
    for (int i = 0; i < chunk_count; ++i) {
      in.partials[rank].push_back(static_cast<double>(random() % 1000));  // exact in any order
    }
    in.written.emplace_back();
    for (int i = 0; i < parameters; ++i) {
      in.written[rank].push_back(random() % 4 == 0);
    }
    in.weights.push_back(static_cast<double>(random() % 5));
    in.hashes.push_back(random() % 12 == 0 ? 1 : 2);
  }
  if (random() % 3 == 0) {
    in.partials[random() % world][random() % chunk_count] = HUGE_VAL;
  }
  for (int i = 0; i < chunk_count; ++i) {
    in.chunks.push_back(Chunk{0, 1, 0, 0, static_cast<std::int32_t>(random() % parameters)});
  }
  return in;
}

void decide_on_cpu(const BoundaryInputs& in, BoundarySide& side) {
  const std::int64_t stride = boundary_record_bytes(in.parameters());
  side.records.assign(stride * in.world(), 0xAB);
  const ChunkTable table{in.chunks.data(), in.chunk_count(), nullptr, 0};
  for (int rank = 0; rank < in.world(); ++rank) {
    fill_boundary_record(Place{}, table, in.partials[rank].data(),
                         {.order_hash = in.hashes[rank],
                          .weight = &in.weights[rank],
                          .written = in.written[rank].data(),
                          .parameters = in.parameters()},
                         side.records.data() + rank * stride);
  }
  finish_boundary(Place{}, side.records.data(), in.world(), in.parameters(), in.rule, &side.state,
                  side.active.data(), side.steps.data(), &side.decision, &side.result);
}

void decide_on_device(const Place& place, const BoundaryInputs& in, BoundarySide& side) {
  const std::int64_t stride = boundary_record_bytes(in.parameters());
  side.records.assign(stride * in.world(), 0xCD);
  const OnDevice records(side.records);
  const OnDevice chunks(in.chunks);
  const ChunkTable table{chunks.as<Chunk>(), in.chunk_count(), nullptr, 0};
  for (int rank = 0; rank < in.world(); ++rank) {
    const OnDevice partials(in.partials[rank]);
    const OnDevice written(in.written[rank]);
    const OnDevice weight(&in.weights[rank], sizeof(double));
    fill_boundary_record(place, table, partials.as<double>(),
                         {.order_hash = in.hashes[rank],
                          .weight = weight.as<double>(),
                          .written = written.as<std::uint8_t>(),
                          .parameters = in.parameters()},
                         records.as<std::uint8_t>() + rank * stride);
    require(cudaStreamSynchronize(static_cast<cudaStream_t>(place.stream)));
  }
  const OnDevice state(&side.state, sizeof(side.state));
  const OnDevice active(side.active);
  const OnDevice steps(side.steps);
  const OnDevice decision(&side.decision, sizeof(side.decision));
  const OnDevice result(&side.result, sizeof(side.result));
  finish_boundary(place, records.data(), in.world(), in.parameters(), in.rule,
                  state.as<LossScaleState>(), active.as<std::uint8_t>(), steps.as<std::int32_t>(),
                  decision.as<StepDecision>(), result.as<BoundaryResult>());
  require(cudaStreamSynchronize(static_cast<cudaStream_t>(place.stream)));
  records.download(side.records.data());
  active.download(side.active.data());
  steps.download(side.steps.data());
  side.state = state.value<LossScaleState>();
  side.decision = decision.value<StepDecision>();
  side.result = result.value<BoundaryResult>();
}

// Equal bits for finite values; NaN equals NaN.
void expect_same(double a, double b) { EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))); }

void expect_same_decision(const BoundarySide& a, const BoundarySide& b) {
  EXPECT_EQ(a.records, b.records);
  EXPECT_EQ(a.active, b.active);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.state.scale, b.state.scale);
  EXPECT_EQ(a.state.iteration, b.state.iteration);
  EXPECT_EQ(a.state.last_overflow_iteration, b.state.last_overflow_iteration);
  EXPECT_EQ(a.state.hysteresis_left, b.state.hysteresis_left);
  expect_same(a.decision.gradient_multiplier, b.decision.gradient_multiplier);
  EXPECT_EQ(a.decision.apply, b.decision.apply);
  expect_same(a.result.norm, b.result.norm);
  expect_same(a.result.norm_clipped, b.result.norm_clipped);
  EXPECT_EQ(a.result.loss_scale, b.result.loss_scale);
  EXPECT_EQ(a.result.next_loss_scale, b.result.next_loss_scale);
  EXPECT_EQ(a.result.applied, b.result.applied);
  EXPECT_EQ(a.result.overflow, b.result.overflow);
  EXPECT_EQ(a.result.at_min_scale, b.result.at_min_scale);
  EXPECT_EQ(a.result.order_mismatch, b.result.order_mismatch);
  EXPECT_EQ(a.result.bad_rank, b.result.bad_rank);
  EXPECT_EQ(a.result.bad_parameter, b.result.bad_parameter);
}

TEST_F(KernelsCuda, BoundaryDecidesAsTheCpuDoes) {
  std::mt19937 random(1);
  constexpr int kParameters = 1003;
  BoundaryRule rule;
  rule.loss_scale = {true, 1024.0, 2.0, 1.0, 3, 2, false};
  rule.clip = 0.7;
  rule.gradient_factor = 1.0 / 3;
  BoundarySide on_cpu;
  on_cpu.state = initial_loss_scale_state(rule.loss_scale);
  on_cpu.steps.assign(kParameters, 0);
  on_cpu.active.assign(kParameters, 7);
  BoundarySide on_device = on_cpu;
  for (int i = 0; i < 40; ++i) {
    BoundaryInputs in = random_boundary(random, 1 + i % 5, kParameters, 1 + i * 61 % 1500);
    in.rule = rule;
    in.rule.norm_ranks = i % 7 == 0 ? 1 : 0;
    decide_on_cpu(in, on_cpu);
    decide_on_device(place_, in, on_device);
    expect_same_decision(on_cpu, on_device);
  }
}

// Bits are equal, or both are NaN.
void expect_same_values(const Array& a, const Array& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double left = a.get(i);
    const double right = b.get(i);
    ASSERT_TRUE((std::isnan(left) && std::isnan(right)) ||
                (left == right && std::signbit(left) == std::signbit(right)))
        << "element " << i << ": " << left << " and " << right;
  }
}

TEST_F(KernelsCuda, SumRankedHasTheBitsOfTheCpu) {
  for (DType out_dtype : testing::all_dtypes()) {
    for (DType in_dtype : testing::all_dtypes()) {
      for (std::int64_t n : {1, 7, 8, 1023, 4096, 100001}) {
        for (int world : {1, 2, 3, 8}) {
          for (std::int64_t shift : {0, 1}) {
            const bool accumulate = (n + world + shift) % 2 == 0;
            const Array in(in_dtype, testing::random_floats(n * world, 3, -2.0F, 2.0F));
            Array expected(out_dtype, testing::random_floats(n, 4, -2.0F, 2.0F));
            Array found = expected;
            const OnDevice device_in(in.data(), in.bytes.size(), shift * element_size(in_dtype));
            const OnDevice device_out(found.data(), found.bytes.size(),
                                      shift * element_size(out_dtype));
            sum_ranked(Place{}, expected.data(), out_dtype, in.data(), in_dtype, world, n, 0.3,
                       accumulate);
            sum_ranked(place_, device_out.data(), out_dtype, device_in.data(), in_dtype, world, n,
                       0.3, accumulate);
            wait();
            device_out.download(found.data());
            ASSERT_TRUE(expected == found) << "n " << n << ", world " << world;
          }
        }
      }
    }
  }
}

TEST_F(KernelsCuda, ConversionsAgreeOnEveryPatternAndOnRandomFloats) {
  std::mt19937 random(2);
  for (DType out_dtype : testing::all_dtypes()) {
    for (DType in_dtype : testing::all_dtypes()) {
      Array in(in_dtype, std::vector<float>(65536));
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto pattern = static_cast<std::uint32_t>(random());
        const auto bits = static_cast<std::uint16_t>(i);
        if (in_dtype == DType::kFloat32) {
          std::memcpy(in.bytes.data() + 4 * i, &pattern, 4);
        } else {
          std::memcpy(in.bytes.data() + 2 * i, &bits, 2);
        }
      }
      Array expected(out_dtype, std::vector<float>(65536));
      Array found = expected;
      convert(Place{}, expected.data(), out_dtype, in.data(), in_dtype, 65536, false);
      const OnDevice device_in(in.bytes);
      const OnDevice device_out(found.bytes);
      convert(place_, device_out.data(), out_dtype, device_in.data(), in_dtype, 65536, false);
      wait();
      device_out.download(found.data());
      expect_same_values(expected, found);
    }
  }
}

TEST_F(KernelsCuda, BuiltForThisDevice) {
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0));
  const std::vector<int> architectures = cuda_architectures();
  ASSERT_FALSE(architectures.empty());
  EXPECT_LE(architectures.front(), 10 * properties.major + properties.minor);
}

}  // namespace
}  // namespace shardwise::kernels
