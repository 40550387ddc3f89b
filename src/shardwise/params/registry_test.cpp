#include "shardwise/params/registry.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardwise/base/error.h"

namespace shardwise::params {
namespace {

ParameterSpec spec(const std::string& name, at::Tensor tensor, at::ScalarType dtype = at::kFloat) {
  return {.name = name, .aliases = {}, .tensor = std::move(tensor), .dtype = dtype, .group = 0};
}

std::vector<UnitSpec> one_unit(std::vector<ParameterSpec> parameters) {
  std::vector<UnitSpec> units;
  units.push_back({.name = "unit", .parameters = std::move(parameters), .uses = {}});
  return units;
}

RegistryOptions sharded(int rank, int world) {
  RegistryOptions options;
  options.rank = rank;
  options.world_size = world;
  options.shard_parameters = [](const Unit&) { return true; };
  return options;
}

TEST(FlatStorageTest, TorchBehavesAsNeeded) { EXPECT_NO_THROW(check_flat_storage_works()); }

TEST(FlatStorageTest, SavedViewsFollowTheStorageToAnotherBuffer) {
  FlatStorage storage(6, at::kFloat, at::kCPU, "released");
  const at::Tensor weight = storage.view({2, 3}, {3, 1}, 0);
  const at::Tensor first = at::arange(6, at::kFloat);
  storage.point_at(first);
  const at::Tensor transposed = weight.t();
  const at::Tensor elsewhere = at::arange(6, at::kFloat) * 2;
  storage.release();
  storage.point_at(elsewhere);
  EXPECT_TRUE(at::equal(transposed, elsewhere.view({2, 3}).t()));
}

TEST(FlatStorageTest, ReadingAReleasedTensorThrowsOurMessage) {
  FlatStorage storage(4, at::kFloat, at::kCPU, "block 3 is released");
  const at::Tensor weight = storage.view({4}, {1}, 0);
  const at::Tensor ones = at::ones(4);
  for (int round = 0; round < 2; ++round) {
    try {
      (void)(weight + 1);
      FAIL() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("block 3 is released"), std::string::npos)
          << error.what();
    }
    storage.point_at(ones);
    EXPECT_EQ(weight.sum().item<float>(), 4.0F);
    storage.release();
  }
}

TEST(RegistryTest, ParametersKeepValuesShapesAndStrides) {
  const at::Tensor a = at::randn({2, 3}).requires_grad_();
  const at::Tensor b = at::randn({2, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor a_before = a.detach().clone();
  const at::Tensor b_before = b.clone();
  const auto strides = b.strides().vec();
  Registry registry(one_unit({spec("a", a), spec("b", b)}), {});
  EXPECT_TRUE(at::equal(a, a_before));
  EXPECT_TRUE(at::equal(b, b_before));
  EXPECT_EQ(b.strides().vec(), strides);
  EXPECT_EQ(registry.trainable_count(), 1);
  EXPECT_EQ(registry.segments().size(), 2U);  // trainable and frozen
}

TEST(RegistryTest, ShardsOfAllRanksMakeUpTheWhole) {
  const at::Tensor source = at::randn({7, 5});
  std::vector<at::Tensor> shards;
  for (int rank = 0; rank < 3; ++rank) {
    const at::Tensor a = source.clone().requires_grad_();
    Registry registry(one_unit({spec("a", a)}), sharded(rank, 3));
    shards.push_back(registry.segments()[0]->shard.data());
    EXPECT_ANY_THROW((void)(a + 1));
  }
  const at::Tensor whole = at::cat(shards).narrow(0, 0, 35).view({7, 5});
  EXPECT_TRUE(at::equal(whole, source));
}

TEST(RegistryTest, SixteenBitTrainingKeepsTheExactValuesAsMaster) {
  const at::Tensor a = at::randn({64}).requires_grad_();
  const at::Tensor before = a.detach().clone();
  Registry registry(one_unit({spec("a", a, at::kBFloat16)}), {});
  EXPECT_EQ(a.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(registry.segments()[0]->initial_fp32.data().narrow(0, 0, 64), before));
}

TEST(RegistryTest, ParametersSurviveTheRegistry) {
  const at::Tensor a = at::randn({5}).requires_grad_();
  const at::Tensor before = a.detach().clone();
  {
    Registry registry(one_unit({spec("a", a)}), {});
  }
  EXPECT_TRUE(at::equal(a, before));
}

TEST(RegistryTest, EmptyParametersAndUnitsAreAllowed) {
  const at::Tensor nothing = at::zeros({0, 3}).requires_grad_();
  const at::Tensor scalar = at::zeros({}).requires_grad_();
  Registry registry(one_unit({spec("nothing", nothing), spec("scalar", scalar)}), sharded(1, 4));
  EXPECT_EQ(registry.segments()[0]->layout.payload, 1);
  Registry empty(one_unit({}), {});
  EXPECT_TRUE(empty.segments().empty());
}

TEST(RegistryTest, SlicesOfOneTensorAreRefused) {
  const at::Tensor base = at::zeros({10});
  EXPECT_THROW(
      Registry(one_unit({spec("a", base.narrow(0, 0, 6)), spec("b", base.narrow(0, 4, 6))}), {}),
      UsageError);
  EXPECT_NO_THROW(
      Registry(one_unit({spec("a", base.narrow(0, 0, 4)), spec("b", base.narrow(0, 4, 6))}), {}));
}

TEST(RegistryTest, UnfrozenParametersLeaveTheirSegmentAndTheRestStays) {
  const at::Tensor trained = at::randn({8}).requires_grad_();
  const at::Tensor a = at::randn({2, 3});
  const at::Tensor b = at::randn({40});
  const at::Tensor a_before = a.clone();
  const at::Tensor b_before = b.clone();
  Registry registry(one_unit({spec("trained", trained, at::kBFloat16), spec("a", a, at::kBFloat16),
                              spec("b", b, at::kBFloat16)}),
                    {});
  const void* untouched = trained.data_ptr();
  const c10::weak_intrusive_ptr<c10::StorageImpl> old(
      registry.segments()[1]->full.storage().getWeakStorageImpl());
  const at::Tensor view = a.view({6});  // as a graph that is kept would have
  const auto made = registry.unfreeze({2}, {});
  ASSERT_EQ(made.size(), 1U);
  EXPECT_TRUE(old.expired()) << "the frozen copy is held twice";
  EXPECT_ANY_THROW((void)(view + 1));
  EXPECT_EQ(trained.data_ptr(), untouched);
  EXPECT_EQ(registry.trainable_count(), 2);
  EXPECT_EQ(registry.trainable(1).parameter().name, "b");
  EXPECT_EQ(made[0]->id, 2);
  EXPECT_EQ(registry.segments()[1]->parameters.size(), 1U);
  EXPECT_TRUE(at::equal(a, a_before.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(b, b_before.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(made[0]->initial_fp32.data().narrow(0, 0, 40), b.to(at::kFloat)));
  registry.check_intact();

  const auto rest = registry.unfreeze({1}, {});
  EXPECT_EQ(rest[0]->id, 1) << "an emptied segment leaves its place";
  EXPECT_EQ(registry.unit(0).segments.size(), 3U);
  EXPECT_TRUE(at::equal(a, a_before.to(at::kBFloat16)));
}

TEST(RegistryTest, AReplacedParameterIsNoticed) {
  const at::Tensor a = at::randn({5}).requires_grad_();
  Registry registry(one_unit({spec("a", a)}), {});
  EXPECT_NO_THROW(registry.check_intact());
  a.set_data(at::zeros({3}));
  EXPECT_THROW(registry.check_intact(), UsageError);
}

}  // namespace
}  // namespace shardwise::params
