// Rank-ordered sums against a plain loop, and every 16-bit conversion against its definition.
#include "shardwise/kernels/reduce.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/kernels/dispatch.h"
#include "shardwise/kernels/test_reference.h"

namespace shardwise::kernels {
namespace {

using testing::Array;

constexpr std::int64_t kLengths[] = {0, 1, 7, 8, 15, 16, 17, 2047, 2048, 2049, 70001};

Place place_at(CpuLevel level) {
  Place place;
  place.cpu_level = level;
  return place;
}

// Starts at an element that no vector width divides.
void* at(Array& array, std::int64_t element) {
  return array.bytes.data() + element * element_size(array.dtype);
}

class ReduceAtLevel : public ::testing::TestWithParam<CpuLevel> {};

// fp32 sums in rank order, then one fused scale and addition, then one rounding.
Array reference_sum(const Array& out, const Array& in, int world, std::int64_t n, float scale,
                    bool accumulate) {
  Array result = out;
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = static_cast<float>(in.get(i));
    for (int rank = 1; rank < world; ++rank) {
      sum += static_cast<float>(in.get(rank * n + i));
    }
    const float old = static_cast<float>(out.get(i + 1));
    result.set(i + 1, accumulate ? std::fma(scale, sum, old) : scale * sum);
  }
  return result;
}

TEST_P(ReduceAtLevel, SumRankedEqualsAPlainLoop) {
  for (DType out_dtype : testing::all_dtypes()) {
    for (DType in_dtype : testing::all_dtypes()) {
      for (std::int64_t n : kLengths) {
        for (int world : {1, 2, 3, 5}) {
          const bool accumulate = (n + world) % 2 == 0;
          Array in(in_dtype, testing::random_floats(n * world, 11 + world, -3.0F, 3.0F));
          Array out(out_dtype, testing::random_floats(n + 2, 7, -3.0F, 3.0F));
          const Array expected = reference_sum(out, in, world, n, 0.3F, accumulate);
          sum_ranked(place_at(GetParam()), at(out, 1), out_dtype, in.data(), in_dtype, world, n,
                     0.3F, accumulate);
          ASSERT_TRUE(out == expected) << "n " << n << ", world " << world;
        }
      }
    }
  }
}

TEST_P(ReduceAtLevel, SumIsInFloatNotInTheInputType) {
  // 1 + 2^-9 + 2^-9 is 1 + 2^-8 in fp32; summed in bf16 (8 bits) it would stay 1.
  const Array in(DType::kBFloat16, {1.0F, 0x1p-9F, 0x1p-9F, 0x1p-9F, 0x1p-9F});
  Array out(DType::kBFloat16, {0.0F});
  sum_ranked(place_at(GetParam()), out.data(), out.dtype, in.data(), in.dtype, 5, 1, 1.0, false);
  EXPECT_EQ(out.get(0), 1.0 + 0x1p-7);
}

TEST_P(ReduceAtLevel, PiecesHaveTheBitsOfTheWhole) {
  constexpr std::int64_t kN = 5003;
  constexpr int kWorld = 4;
  const ParallelFor threads = testing::threads_for_test();
  Place place = place_at(GetParam());
  place.parallel_for = &threads;
  for (DType dtype : testing::all_dtypes()) {
    Array in(dtype, testing::random_floats(kN * kWorld, 5, -1.0F, 1.0F));
    Array whole(dtype, std::vector<float>(kN));
    sum_ranked(place, whole.data(), dtype, in.data(), dtype, kWorld, kN, 0.25, false);
    for (std::int64_t piece : {1, 13, 64, 1000, 4999}) {
      Array pieces(dtype, std::vector<float>(kN));
      for (std::int64_t begin = 0; begin < kN; begin += piece) {
        sum_ranked_strided(place, at(pieces, begin), dtype, at(in, begin), dtype, kWorld,
                           std::min(piece, kN - begin), kN, 0.25, false);
      }
      EXPECT_TRUE(pieces == whole) << "pieces of " << piece;
    }
  }
}

TEST_P(ReduceAtLevel, ThreadsHaveTheBitsOfOneThread) {
  constexpr std::int64_t kN = 100003;
  const ParallelFor threads = testing::threads_for_test();
  Array in(DType::kFloat16, testing::random_floats(kN * 3, 6, -1.0F, 1.0F));
  Array serial(DType::kFloat32, std::vector<float>(kN));
  Array parallel = serial;
  Place place = place_at(GetParam());
  sum_ranked(place, serial.data(), serial.dtype, in.data(), in.dtype, 3, kN, 1.0, false);
  place.parallel_for = &threads;
  sum_ranked(place, parallel.data(), serial.dtype, in.data(), in.dtype, 3, kN, 1.0, false);
  EXPECT_TRUE(serial == parallel);
}

TEST_P(ReduceAtLevel, SumMayReplaceTheFirstSlice) {
  constexpr std::int64_t kN = 6007;
  for (DType dtype : testing::all_dtypes()) {
    Array in(dtype, testing::random_floats(kN * 3, 8, -1.0F, 1.0F));
    Array apart(dtype, std::vector<float>(kN));
    sum_ranked(place_at(GetParam()), apart.data(), dtype, in.data(), dtype, 3, kN, 0.5, false);
    sum_ranked(place_at(GetParam()), in.data(), dtype, in.data(), dtype, 3, kN, 0.5, false);
    in.bytes.resize(apart.bytes.size());
    EXPECT_TRUE(in == apart);
  }
}

TEST_P(ReduceAtLevel, EverySixteenBitPatternDecodes) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Array in(dtype, std::vector<float>(65536));
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      std::memcpy(in.bytes.data() + 2 * bits, &pattern, 2);
    }
    Array out(DType::kFloat32, std::vector<float>(65536));
    convert(place_at(GetParam()), out.data(), out.dtype, in.data(), dtype, 65536, false);
    Array back(dtype, std::vector<float>(65536));
    convert(place_at(GetParam()), back.data(), dtype, out.data(), out.dtype, 65536, false);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const double expected = testing::decode16(static_cast<std::uint16_t>(bits), dtype);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out.get(bits)) && std::isnan(back.get(bits))) << bits;
      } else {
        ASSERT_EQ(out.get(bits), expected) << bits;
        ASSERT_EQ(std::signbit(out.get(bits)), std::signbit(expected)) << bits;
        ASSERT_EQ(back.pattern(bits), bits);
      }
    }
  }
}

// Every pattern's value, the midpoint to the next one, and the floats next to that midpoint.
std::vector<float> rounding_cases(DType dtype) {
  std::vector<float> values = {
      std::nanf(""), HUGE_VALF, -HUGE_VALF, 65519.99F,
      65520.0F,      3.4e38F,   -0.0F,      std::numeric_limits<float>::denorm_min()};
  for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const double low = testing::decode16(static_cast<std::uint16_t>(bits), dtype);
    const double high = testing::decode16(static_cast<std::uint16_t>(bits + 1), dtype);
    if (!std::isfinite(high)) {
      break;
    }
    const auto middle = static_cast<float>((low + high) / 2);
    const float sign = bits % 2 == 0 ? 1.0F : -1.0F;
    for (float value :
         {middle, std::nextafterf(middle, 0.0F), std::nextafterf(middle, HUGE_VALF)}) {
      values.push_back(sign * value);
    }
  }
  return values;
}

TEST_P(ReduceAtLevel, RoundsToNearestEven) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<float> values = rounding_cases(dtype);
    const std::vector<float> random = testing::random_floats(5000, 9, -7e4F, 7e4F);
    values.insert(values.end(), random.begin(), random.end());
    Array out(dtype, std::vector<float>(values.size()));
    convert(place_at(GetParam()), out.data(), dtype, values.data(), DType::kFloat32,
            static_cast<std::int64_t>(values.size()), false);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(out.get(i)));
      } else {
        ASSERT_EQ(out.pattern(i), testing::encode16(values[i], dtype)) << values[i];
      }
    }
  }
}

TEST_P(ReduceAtLevel, NanSurvivesWhateverItsPayload) {
  std::vector<float> values(32);
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint32_t bits = (i % 2 << 31) | 0x7F800000U | (1U << (i % 23));  // signalling too
    std::memcpy(&values[i], &bits, 4);
  }
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Array out(dtype, std::vector<float>(32));
    convert(place_at(GetParam()), out.data(), dtype, values.data(), DType::kFloat32, 32, false);
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_TRUE(std::isnan(out.get(i))) << i;
    }
  }
}

TEST_P(ReduceAtLevel, ConvertAddsOrCopies) {
  for (DType out_dtype : testing::all_dtypes()) {
    for (DType in_dtype : testing::all_dtypes()) {
      for (bool accumulate : {false, true}) {
        Array in(in_dtype, testing::random_floats(1001, 21, -2.0F, 2.0F));
        Array out(out_dtype, testing::random_floats(1003, 22, -2.0F, 2.0F));
        const Array expected = reference_sum(out, in, 1, 1001, 1.0F, accumulate);
        convert(place_at(GetParam()), at(out, 1), out_dtype, in.data(), in_dtype, 1001, accumulate);
        EXPECT_TRUE(out == expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ReduceAtLevel, ::testing::ValuesIn(available_cpu_levels()),
                         [](const auto& tested) { return cpu_level_name(tested.param); });

TEST(Reduce, WrongShapesAreOurBug) {
  float out = 0;
  const float in = 1;
  EXPECT_THROW(sum_ranked(Place{}, &out, DType::kFloat32, &in, DType::kFloat32, 0, 1, 1.0, false),
               InternalError);
  EXPECT_THROW(
      sum_ranked_strided(Place{}, &out, DType::kFloat32, &in, DType::kFloat32, 1, 2, 1, 1.0, false),
      InternalError);
}

TEST(Dispatch, LevelsHaveNamesAndTheBestIsLast) {
  const std::vector<CpuLevel> levels = available_cpu_levels();
  EXPECT_EQ(levels.front(), CpuLevel::kScalar);
  EXPECT_EQ(levels.back(), best_cpu_level());
  EXPECT_EQ(cpu_dispatch_level(), cpu_level_name(best_cpu_level()));
}

TEST(Dispatch, CudaWithoutCudaIsAClearError) {
  if (!cuda_architectures().empty()) {
    GTEST_SKIP() << "this build has CUDA";
  }
  Place place;
  place.cuda = true;
  float out = 0;
  const float in = 1;
  try {
    convert(place, &out, DType::kFloat32, &in, DType::kFloat32, 1, true);
    FAIL() << "no error";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("built without CUDA"), std::string::npos);
  }
}

}  // namespace
}  // namespace shardwise::kernels
