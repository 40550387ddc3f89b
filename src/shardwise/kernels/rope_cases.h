// Rotary embeddings against their formula in double, for any place.
#pragma once

#include "shardwise/kernels/rope.h"
#include "shardwise/kernels/test_place.h"

namespace shardwise::kernels::testing {

struct RopeCase {
  std::int64_t tokens, heads, other_heads, head_dim, rotary_dim;
  bool interleaved;
  bool has_positions;
  std::int64_t shift;
};

inline void check_rope_case(TestPlace& place, const RopeCase& c, DType dtype) {
  constexpr std::int64_t kPositions = 11;
  const std::int64_t stride = (c.heads + c.other_heads) * c.head_dim;
  const std::int64_t half = c.rotary_dim / 2;
  const Array rows = random_array(dtype, c.tokens * stride, 1, -2.0F, 2.0F);
  std::vector<float> cosines, sines;
  for (std::int64_t i = 0; i < kPositions * half; ++i) {
    cosines.push_back(static_cast<float>(std::cos(0.37 * static_cast<double>(i))));
    sines.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i))));
  }
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    positions.push_back(c.has_positions ? (7 * t + 3) % kPositions : t % 5);
  }
  const RopeShape shape{.dtype = dtype,
                        .tokens = c.tokens,
                        .row_stride = stride,
                        .heads = c.heads,
                        .head_dim = c.head_dim,
                        .rotary_dim = c.rotary_dim,
                        .interleaved = c.interleaved,
                        .sequence = 5};
  for (bool inverse : {false, true}) {
    std::vector<Expected> expected;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      expected.push_back({rows.get(i), 0.0});
    }
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      for (std::int64_t head = 0; head < c.heads; ++head) {
        for (std::int64_t i = 0; i < half; ++i) {
          const std::int64_t start = t * stride + head * c.head_dim;
          const std::int64_t first = start + (c.interleaved ? 2 * i : i);
          const std::int64_t second = c.interleaved ? first + 1 : first + half;
          const double cosine = cosines[positions[t] * half + i];
          const double sine = (inverse ? -1 : 1) * sines[positions[t] * half + i];
          const double a = rows.get(first);
          const double b = rows.get(second);
          // Two products and a sum: three roundings of fp32 at most.
          expected[first] = {a * cosine - b * sine,
                             3 * 0x1p-24 * (std::abs(a * cosine) + std::abs(b * sine))};
          expected[second] = {b * cosine + a * sine,
                              3 * 0x1p-24 * (std::abs(b * cosine) + std::abs(a * sine))};
        }
      }
    }
    PlacedArray found(place, rows, c.shift);
    Placed<float> cosine(place, cosines), sine(place, sines);
    Placed<std::int64_t> position(place, positions);
    RopeShape directed = shape;
    directed.inverse = inverse;
    rope(place.place, directed, found.data(), found.data(), cosine.data(), sine.data(),
         c.has_positions ? position.data() : nullptr);
    expect_close(found.fetch(), expected,
                 "head_dim " + std::to_string(c.head_dim) + ", rotary_dim " +
                     std::to_string(c.rotary_dim) + ", interleaved " +
                     std::to_string(static_cast<int>(c.interleaved)) + ", dtype " +
                     std::to_string(static_cast<int>(dtype)));
  }
}

inline void check_rope(TestPlace& place) {
  for (bool interleaved : {false, true}) {
    const std::vector<RopeCase> cases = {
        {0, 3, 1, 64, 64, interleaved, false, 0},    {13, 5, 2, 64, 64, interleaved, true, 0},
        {37, 6, 0, 128, 32, interleaved, false, 0},  {9, 3, 1, 80, 80, interleaved, true, 0},
        {7, 1, 1, 10, 6, interleaved, false, 0},     {6, 9, 3, 64, 64, interleaved, true, 1},
        {300, 2, 1, 256, 64, interleaved, false, 0}, {5, 2, 1, 20, 16, interleaved, true, 0}};
    for (const RopeCase& c : cases) {
      for (DType dtype : place.dtypes()) {
        check_rope_case(place, c, dtype);
      }
    }
  }
}

}  // namespace shardwise::kernels::testing
