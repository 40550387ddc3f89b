#include "shardwise/train/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/base/error.h"
#include "shardwise/comm/thread_transport.h"
#include "shardwise/device/launch_point.h"

namespace shardwise::train {
namespace {

constexpr int kBlocks = 3;
constexpr int kWidth = 10;
constexpr int kSamples = 12;
constexpr int kSteps = 4;
constexpr double kLearningRate = 0.1;

at::Tensor initial_weight(int block) {
  return at::linspace(-0.5 + 0.1 * block, 0.7, kWidth * kWidth).view({kWidth, kWidth});
}

at::Tensor batch(int step) {
  return at::sin(at::arange(kSamples * kWidth, at::kFloat) * (1.0 + step)).view({kSamples, kWidth});
}

at::Tensor block_forward(const at::Tensor& x, const at::Tensor& w,
                         const std::function<void()>& in_backward = {}) {
  const at::Tensor inner = at::tanh(x.mm(w));
  if (in_backward) {
    inner.register_hook([in_backward](const at::Tensor&) { in_backward(); });
  }
  return inner + x;
}

// Block 1 is frozen before step `frozen_until`.
void freeze(std::vector<at::Tensor>& weights, int step, int frozen_until) {
  weights[1].requires_grad_(step >= frozen_until);
}

// Plain autograd on the whole batch: losses, gradient norms, and weights after plain SGD.
struct Trajectory {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;
};

Trajectory reference(int frozen_until = 0) {
  Trajectory run;
  std::vector<at::Tensor> weights;
  for (int b = 0; b < kBlocks; ++b) {
    weights.push_back(initial_weight(b).requires_grad_());
  }
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor x = batch(step);
    freeze(weights, step, frozen_until);
    for (const at::Tensor& weight : weights) {
      x = block_forward(x, weight);
    }
    const at::Tensor loss = x.pow(2).mean();
    loss.backward();
    run.losses.push_back(loss.item<double>());
    double squares = 0;
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : weights) {
      if (!weight.grad().defined()) {
        continue;
      }
      squares += weight.grad().pow(2).sum().item<double>();
      weight.sub_(weight.grad() * kLearningRate);
      weight.mutable_grad() = at::Tensor();
    }
    run.norms.push_back(std::sqrt(squares));
  }
  for (const at::Tensor& weight : weights) {
    run.weights.push_back(weight.detach().clone());
  }
  return run;
}

config::Config stage_config(int stage) {
  config::Config config;
  config.batch.gradient_accumulation_steps = 1;
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 0;
  config.data_types.grad_accum_dtype = "fp32";
  config.gradient_clipping = 0;
  config.own.poison_released = true;
  return config;
}

class Model {
 public:
  explicit Model(const comm::ShardChannels& channels, int stage, int accumulation = 1,
                 int frozen_until = 0, std::int64_t prefetch = 50'000'000) {
    std::vector<params::UnitSpec> units;
    for (int b = 0; b < kBlocks; ++b) {
      weights_.push_back(initial_weight(b).requires_grad_());
    }
    freeze(weights_, /*step=*/0, frozen_until);
    for (int b = 0; b < kBlocks; ++b) {
      units.push_back({.name = "block " + std::to_string(b),
                       .parameters = {{.name = "w" + std::to_string(b),
                                       .aliases = {},
                                       .tensor = weights_[b],
                                       .dtype = at::kFloat,
                                       .group = 0}},
                       .uses = {}});
    }
    EngineOptions options;
    options.config = stage_config(stage);
    options.config.batch.gradient_accumulation_steps = accumulation;
    options.config.zero.prefetch_bucket_size = prefetch;
    options.rule.name = "sgd";
    engine_ = std::make_unique<Engine>(options, channels, std::move(units));
  }

  at::Tensor loss(at::Tensor x, const std::vector<int>& order = {0, 1, 2}) {
    zero::UnitDriver& driver = engine_->driver();
    driver.begin_pass();
    for (const int b : order) {
      const bool tracked = x.requires_grad();
      const auto marked =
          driver.before_forward(b, tracked ? std::vector{x} : std::vector<at::Tensor>{});
      x = block_forward(marked.empty() ? x : marked[0], weights_[b],
                        in_backward_ ? [this, b] { in_backward_(b); } : std::function<void()>());
      driver.after_forward(b, {x});
    }
    return x.pow(2).mean();
  }

  void step() {
    engine_->step({{{"lr", kLearningRate},
                    {"momentum", 0},
                    {"dampening", 0},
                    {"weight_decay", 0},
                    {"nesterov", 0}}});
  }
  Engine& engine() { return *engine_; }
  std::vector<at::Tensor>& weights() { return weights_; }
  // Called in the backward of every block.
  void set_in_backward(std::function<void(int block)> call) { in_backward_ = std::move(call); }

 private:
  std::function<void(int)> in_backward_;
  std::vector<at::Tensor> weights_;
  std::unique_ptr<Engine> engine_;
};

class EngineTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(EngineTest, EqualsPlainAutograd) {
  const auto [stage, world] = GetParam();
  const Trajectory expected = reference();
  std::mutex checks;  // gtest's failures are recorded one at a time
  comm::run_ranks(world, [&, stage = stage, world = world](const comm::ShardChannels& channels) {
    Model model(channels, stage);
    const int part = kSamples / world;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor mine = batch(step).narrow(0, channels.gather->rank() * part, part);
      model.loss(mine).backward();
      model.step();
      const std::scoped_lock lock(checks);
      EXPECT_NEAR(model.engine().last_result()->norm, expected.norms[step],
                  1e-6 * expected.norms[step]);
    }
    for (int b = 0; b < kBlocks; ++b) {
      const at::Tensor weight = model.engine().tensors().full(b, "parameter");
      const std::scoped_lock lock(checks);
      // fp32: relative error max|a−b| ÷ max|b| of a sum over 12 samples in another order.
      EXPECT_LT((weight - expected.weights[b]).abs().max().item<double>(),
                1e-5 * expected.weights[b].abs().max().item<double>());
    }
    // Every element of every parameter is held by somebody, and can be overwritten.
    std::int64_t held = 0;
    for (const params::StatePiece& piece : model.engine().optimizer()->state_view()) {
      held += piece.data.numel();
    }
    const at::Tensor counts = at::zeros({world}, at::kLong);
    channels.gather->all_gather(counts, at::full({1}, held, at::kLong), "test")->wait();
    for (int b = 0; b < kBlocks; ++b) {
      model.engine().tensors().set_parameter(b, at::full({kWidth, kWidth}, b + 0.5F));
      const at::Tensor changed = model.engine().tensors().full(b, "parameter");
      const std::scoped_lock lock(checks);
      EXPECT_TRUE(at::equal(changed, at::full({kWidth, kWidth}, b + 0.5F)));
    }
    const std::scoped_lock lock(checks);
    EXPECT_EQ(counts.sum().item<std::int64_t>(),
              kBlocks * kWidth * kWidth * (stage == 0 ? world : 1));
  });
}

// Of the middle block, in every state of its place: nothing there, a product, autograd's gradient.
TEST_P(EngineTest, ProductsAreCarriedOutInTheGradientsPlace) {
  const auto [stage, world] = GetParam();
  const at::Tensor left = at::rand({kWidth, 4}), right = at::rand({4, kWidth});
  std::mutex checks;
  comm::run_ranks(world, [&, stage = stage, world = world](const comm::ShardChannels& channels) {
    const int part = kSamples / world;
    const at::Tensor mine = batch(0).narrow(0, channels.gather->rank() * part, part);
    const auto gradient = [&](int products) {
      Model model(channels, stage);
      const at::Tensor loss = model.loss(mine);
      const auto add = [&, products](const at::Tensor&) {
        for (int i = 0; i < products; ++i) {
          const params::PlainProduct product(left, right), other_shape(right, left);
          const bool taken = model.engine().driver().product({1}, product);
          const std::scoped_lock lock(checks);
          EXPECT_TRUE(taken);
          EXPECT_FALSE(model.engine().driver().product({1}, other_shape));
          const params::PlainProduct twice(at::cat({left, left}), right);
          EXPECT_FALSE(model.engine().driver().product({1, 1}, twice));  // one place, two parts
        }
      };
      loss.register_hook(add);
      loss.backward();
      return model.engine().tensors().full(1, "gradient");
    };
    const at::Tensor plain = gradient(0), with_products = gradient(2);
    const std::scoped_lock lock(checks);
    // Every rank has added two, and the mean over ranks is taken.
    EXPECT_TRUE(at::allclose(with_products, plain + 2 * left.mm(right), 1e-5, 1e-6));
  });
}

TEST_P(EngineTest, ABlockThatIsUnfrozenTrainsLikePlainAutograd) {
  const auto [stage, world] = GetParam();
  constexpr int kFrozenUntil = 2;
  const Trajectory expected = reference(kFrozenUntil);
  std::mutex checks;
  comm::run_ranks(world, [&, stage = stage, world = world](const comm::ShardChannels& channels) {
    Model model(channels, stage, /*accumulation=*/1, kFrozenUntil);
    const int part = kSamples / world;
    for (int step = 0; step < kSteps; ++step) {
      freeze(model.weights(), step, kFrozenUntil);
      const at::Tensor mine = batch(step).narrow(0, channels.gather->rank() * part, part);
      model.loss(mine).backward();
      model.step();
      const std::scoped_lock lock(checks);
      EXPECT_NEAR(model.engine().last_result()->norm, expected.norms[step],
                  1e-6 * expected.norms[step]);
    }
    EXPECT_EQ(model.engine().registry().trainable_count(), kBlocks);
    for (int b = 0; b < kBlocks; ++b) {
      const at::Tensor weight = model.engine().tensors().full(b, "parameter");
      const std::scoped_lock lock(checks);
      // As in EqualsPlainAutograd.
      EXPECT_LT((weight - expected.weights[b]).abs().max().item<double>(),
                1e-5 * expected.weights[b].abs().max().item<double>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(StagesAndRanks, EngineTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return "Stage" + std::to_string(std::get<0>(info.param)) + "Ranks" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(EngineOrderTest, BlocksInAnotherOrderOnOneRankAreAnErrorThatNamesABlock) {
  try {
    comm::run_ranks(
        2,
        [](const comm::ShardChannels& channels) {
          Model model(channels, /*stage=*/3);
          const bool odd = channels.gather->rank() == 1;
          const std::vector<int> order = odd ? std::vector{0, 2, 1} : std::vector{0, 1, 2};
          model.loss(batch(0).narrow(0, 0, 6), order).backward();
          model.step();
        },
        std::chrono::milliseconds(300));
    FAIL() << "no error";
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("block"), std::string::npos) << error.what();
  }
}

// loss.backward() for one engine while another engine's backward() runs in another thread.
TEST(EngineUseTest, BackwardsInOtherThreadsAreNotMistakenForThisOne) {
  for (const int stage : {0, 3}) {
    const auto single = [] {
      return comm::ShardChannels{
          std::make_shared<comm::Channel>(comm::make_single_transport(), "gather"),
          std::make_shared<comm::Channel>(comm::make_single_transport(), "reduce")};
    };
    Model busy(single(), stage);
    Model quiet(single(), stage, /*accumulation=*/2);
    std::promise<void> inside, done;
    std::thread other([&] {
      const at::Tensor loss = busy.loss(batch(0));
      const at::Tensor root = loss * 1.0;
      loss.register_hook([&](const at::Tensor& gradient) {
        inside.set_value();
        done.get_future().wait();
        return gradient;
      });
      busy.engine().backward(root);
    });
    inside.get_future().wait();
    quiet.loss(batch(0)).backward();
    done.set_value();
    other.join();
    // Plain autograd, divided by the two micro-batches of a window.
    std::vector<at::Tensor> weights;
    at::Tensor x = batch(0);
    for (int b = 0; b < kBlocks; ++b) {
      weights.push_back(initial_weight(b).requires_grad_());
      x = block_forward(x, weights.back());
    }
    (x.pow(2).mean() / 2).backward();
    for (int b = 0; b < kBlocks; ++b) {
      const at::Tensor error = quiet.engine().tensors().full(b, "gradient") - weights[b].grad();
      EXPECT_LT(error.abs().max().item<double>(),
                1e-5 * weights[b].grad().abs().max().item<double>());
    }
  }
}

TEST(EngineOrderTest, ABlockUnfrozenOnOneRankIsAnErrorThatNamesIt) {
  std::mutex mutex;
  int errors = 0;
  comm::run_ranks(2, [&](const comm::ShardChannels& channels) {
    Model model(channels, /*stage=*/3, /*accumulation=*/1, /*frozen_until=*/1);
    const int rank = channels.gather->rank();
    freeze(model.weights(), /*step=*/0, /*frozen_until=*/rank);
    model.loss(batch(0).narrow(0, 6 * rank, 6)).backward();
    try {
      model.step();
    } catch (const CommunicationError& error) {
      const std::scoped_lock lock(mutex);
      const std::string text = error.what();
      EXPECT_NE(text.find("parameter w1, frozen until now, requires gradients on rank 0 but not on "
                          "rank 1"),
                std::string::npos)
          << text;
      ++errors;
    }
    model.engine().zero_grad();
    freeze(model.weights(), /*step=*/0, /*frozen_until=*/0);
    model.loss(batch(0).narrow(0, 6 * rank, 6)).backward();
    EXPECT_NO_THROW(model.step());
  });
  EXPECT_EQ(errors, 2);
}

// Passes everything on, and notes which gathers do not wait for all that was launched before.
class NotingTransport : public comm::Transport {
 public:
  NotingTransport(std::shared_ptr<comm::Transport> inner, std::vector<bool>& early)
      : inner_(std::move(inner)), early_(early) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  comm::WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in,
                           device::Event* ready) override {
    early_.push_back(ready != nullptr);
    return inner_->all_gather(out, in, ready);
  }
  comm::WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                               const comm::Reduction& reduction) override {
    return inner_->reduce_scatter(out, in, reduction);
  }
  comm::WorkPtr all_reduce(const at::Tensor& tensor, double scale) override {
    return inner_->all_reduce(tensor, scale);
  }
  comm::WorkPtr broadcast(const at::Tensor& tensor, int root) override {
    return inner_->broadcast(tensor, root);
  }
  comm::WorkPtr all_to_all(const std::vector<at::Tensor>& out,
                           const std::vector<at::Tensor>& in) override {
    return inner_->all_to_all(out, in);
  }

 private:
  std::shared_ptr<comm::Transport> inner_;
  std::vector<bool>& early_;
};

TEST(EngineOrderTest, GathersOfThePassBehindAnUpdateWaitForTheirUnitsAlone) {
  const auto transports = comm::make_thread_transports(2, std::chrono::seconds(20));
  comm::run_ranks(2, [&](const comm::ShardChannels& channels) {
    const int rank = channels.gather->rank();
    std::vector<bool> early;
    const auto noting = std::make_shared<NotingTransport>(transports[rank], early);
    Model model({std::make_shared<comm::Channel>(noting, "gather"), channels.reduce}, /*stage=*/3);
    const auto gathers_of_a_step = [&] {
      early.clear();
      model.loss(batch(0).narrow(0, 6 * rank, 6)).backward();
      const std::vector<bool> seen = early;
      model.step();
      return seen;
    };
    const auto count = [](const std::vector<bool>& seen) {
      return std::count(seen.begin(), seen.end(), true);
    };
    EXPECT_EQ(count(gathers_of_a_step()), 0);  // nothing was updated yet
    EXPECT_EQ(count(gathers_of_a_step()), 1);  // buffers for units ahead are new
    EXPECT_EQ(gathers_of_a_step(), std::vector<bool>(kBlocks, true));
    // What else changes shards has to be waited for.
    const at::Tensor mine = model.engine().tensors().local(0, "master");
    model.engine().tensors().set_local(0, "master", mine);
    EXPECT_EQ(count(gathers_of_a_step()), 0);
  });
}

// Whatever blocks reach launch points, on whatever ranks, nothing else changes.
TEST_P(EngineTest, LaunchPointsChangeNoNumber) {
  const auto [stage, world] = GetParam();
  std::mutex checks;
  comm::run_ranks(world, [&, stage = stage, world = world](const comm::ShardChannels& channels) {
    const int rank = channels.gather->rank();
    const int part = kSamples / world;
    const auto weights_with = [&](const std::function<bool(int)>& reaches) {
      Model model(channels, stage, /*accumulation=*/2);
      model.set_in_backward([reaches](int block) {
        if (reaches(block)) {
          device::reach_launch_point();
        }
      });
      for (int step = 0; step < 2 * kSteps; ++step) {
        model.loss(batch(step).narrow(0, rank * part, part)).backward();
        step % 2 == 0 ? model.engine().end_micro_batch() : model.step();
      }
      std::vector<at::Tensor> weights;
      for (int b = 0; b < kBlocks; ++b) {
        weights.push_back(model.engine().tensors().full(b, "parameter"));
      }
      return weights;
    };
    const std::vector<at::Tensor> expected = weights_with([](int) { return false; });
    for (const auto& reaches : std::vector<std::function<bool(int)>>{
             [](int) { return true; }, [](int block) { return block != 1; },
             [rank](int) { return rank == 0; }, [rank](int block) { return block > rank; }}) {
      const std::vector<at::Tensor> weights = weights_with(reaches);
      const std::scoped_lock lock(checks);
      for (int b = 0; b < kBlocks; ++b) {
        EXPECT_TRUE(at::equal(weights[b], expected[b]));
      }
    }
  });
}

TEST(EngineOrderTest, CollectivesOfABackwardAreLaunchedAtItsLaunchPoints) {
  comm::run_ranks(1, [](const comm::ShardChannels& channels) {
    Model model(channels, /*stage=*/3, /*accumulation=*/1, /*frozen_until=*/0,
                /*prefetch=*/kWidth * kWidth);
    std::vector<std::string> launched;
    const comm::CollectiveHook note{
        .before_launch =
            [&launched](const comm::CollectiveEvent& event) {
              launched.push_back(concat(comm::collective_name(event.collective), " ", event.who));
            },
        .after_wait = {}};
    const comm::HookHandle gathers = channels.gather->add_hook(note);
    const comm::HookHandle reductions = channels.reduce->add_hook(note);
    model.set_in_backward([&launched](int block) {
      launched.push_back(concat("point ", block));
      device::reach_launch_point();
    });
    for (int step = 0; step < 2; ++step) {  // the second knows the order of units
      const at::Tensor loss = model.loss(batch(0));
      launched.clear();
      loss.backward();
      if (step == 1) {
        EXPECT_EQ(launched,
                  (std::vector<std::string>{"point 2", "point 1", "all_gather block 0", "point 0",
                                            "reduce_scatter block 1", "reduce_scatter block 0",
                                            "reduce_scatter block 2"}));
      }
      model.step();
    }
  });
}

TEST(EngineUseTest, StepWithoutBackwardIsAnError) {
  comm::run_ranks(1, [](const comm::ShardChannels& channels) {
    Model model(channels, 3);
    EXPECT_THROW(model.step(), UsageError);
  });
}

TEST(EngineUseTest, RanksWithOtherShapesAreAnErrorOnEveryRank) {
  int errors = 0;
  std::mutex mutex;
  comm::run_ranks(2, [&](const comm::ShardChannels& channels) {
    std::vector<params::UnitSpec> units;
    const int width = 4 + channels.gather->rank();
    units.push_back({.name = "block",
                     .parameters = {{.name = "w",
                                     .aliases = {},
                                     .tensor = at::zeros({width}).requires_grad_(),
                                     .dtype = at::kFloat,
                                     .group = 0}},
                     .uses = {}});
    EngineOptions options;
    options.config = stage_config(1);
    try {
      Engine engine(options, channels, std::move(units));
    } catch (const UsageError& error) {
      const std::scoped_lock lock(mutex);
      EXPECT_NE(std::string(error.what()).find("entry 0 is 'w"), std::string::npos);
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

}  // namespace
}  // namespace shardwise::train
