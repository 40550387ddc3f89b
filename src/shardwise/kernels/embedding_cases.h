// Gradients of embeddings against a plain loop in double, for any place.
#pragma once

#include <algorithm>
#include <numeric>

#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/test_place.h"

namespace shardwise::kernels::testing {

struct EmbeddingCase {
  std::int64_t tokens, width, vocabulary;
  int frequent;  // of 10 tokens are the same
  bool accumulate, fp32_table;
  std::int64_t shift;
};

inline void check_embedding_case(TestPlace& place, const EmbeddingCase& c, DType dtype) {
  constexpr std::int64_t kPadding = 1;
  std::mt19937 random(3);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < c.tokens; ++i) {
    const bool frequent = static_cast<int>(random() % 10) < c.frequent;
    ids.push_back(frequent ? c.vocabulary / 2 : static_cast<std::int64_t>(random() % c.vocabulary));
  }
  std::vector<std::int64_t> order(c.tokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return ids[a] < ids[b]; });
  std::vector<std::int64_t> sorted;
  for (std::int64_t at : order) {
    sorted.push_back(ids[at]);
  }
  const DType table_dtype = c.fp32_table ? DType::kFloat32 : dtype;
  const Array gradients = random_array(dtype, c.tokens * c.width, 4, -1.0F, 1.0F);
  const Array table = random_array(table_dtype, c.vocabulary * c.width, 5, -1.0F, 1.0F);
  std::vector<Expected> sums(table.size());  // `error`: sum of sizes
  std::vector<int> counts(c.vocabulary);
  for (std::int64_t i = 0; i < c.tokens; ++i) {
    ++counts[ids[i]];
    for (std::int64_t k = 0; k < c.width; ++k) {
      sums[ids[i] * c.width + k].value += gradients.get(i * c.width + k);
      sums[ids[i] * c.width + k].error += std::abs(gradients.get(i * c.width + k));
    }
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(table.size()); ++i) {
    const int count = counts[i / c.width];
    const double old = table.get(i);
    if (count == 0 || i / c.width == kPadding) {
      sums[i] = {old, 0.0};
    } else {
      // As many additions as tokens, each rounded to fp32.
      sums[i].error *= count * 0x1p-24;
      if (c.accumulate) {
        sums[i].value += old;
        sums[i].error += 0x1p-24 * std::abs(sums[i].value);
      }
    }
  }
  const EmbeddingShape shape{.dtype = dtype,
                             .table_dtype = table_dtype,
                             .tokens = c.tokens,
                             .width = c.width,
                             .vocabulary = c.vocabulary,
                             .padding = kPadding,
                             .accumulate = c.accumulate};
  PlacedArray given(place, gradients, c.shift);
  Placed<std::int64_t> placed_sorted(place, sorted), placed_order(place, order);
  Placed<float> partials(place, std::vector<float>(embedding_partials(place.place, shape), -77.0F));
  Array first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    PlacedArray found(place, table);
    embedding_backward(place.place, shape,
                       {.sorted = placed_sorted.data(),
                        .order = placed_order.data(),
                        .gradients = given.data(),
                        .table = found.data(),
                        .partials = partials.data()});
    expect_close(found.fetch(), sums,
                 "tokens " + std::to_string(c.tokens) + ", width " + std::to_string(c.width) +
                     ", dtype " + std::to_string(static_cast<int>(dtype)));
    EXPECT_TRUE(repeat == 0 || found.fetch() == first);
    first = found.fetch();
  }
}

inline void check_embeddings(TestPlace& place) {
  const std::vector<EmbeddingCase> cases = {
      {0, 8, 4, 0, true, false, 0},      {1, 1, 3, 0, false, false, 0},
      {31, 24, 7, 0, false, false, 0},   {33, 13, 50, 5, true, false, 0},
      {64, 64, 2, 10, false, false, 0},  {1000, 40, 30, 8, true, true, 0},
      {97, 1032, 11, 3, true, false, 1}, {300, 2056, 90, 4, false, true, 0}};
  for (const EmbeddingCase& c : cases) {
    for (DType dtype : place.dtypes()) {
      check_embedding_case(place, c, dtype);
    }
  }
}

}  // namespace shardwise::kernels::testing
