#include "shardwise/kernels/embedding.h"

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/elements.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {
namespace {

using cpu::Compute;

// Some columns of all tokens: no two threads meet in the table.
template <typename T, typename W>
void sum_columns(const EmbeddingShape& shape, const EmbeddingArrays& a, std::int64_t begin,
                 std::int64_t end) {
  std::vector<Compute<T>> sums(end - begin);
  for (std::int64_t first = 0, last = 0; first < shape.tokens; first = last) {
    const std::int64_t id = a.sorted[first];
    std::fill(sums.begin(), sums.end(), Compute<T>(0));
    for (last = first; last < shape.tokens && a.sorted[last] == id; ++last) {
      const T* row = static_cast<const T*>(a.gradients) + a.order[last] * shape.width;
      for (std::int64_t i = begin; i < end; ++i) {
        sums[i - begin] += cpu::load(row + i);
      }
    }
    if (id == shape.padding || id < 0 || id >= shape.vocabulary) {
      continue;
    }
    W* to = static_cast<W*>(a.table) + id * shape.width;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto sum = static_cast<Compute<W>>(sums[i - begin]);
      cpu::store<W>(shape.accumulate ? cpu::load(to + i) + sum : sum, to + i);
    }
  }
}

}  // namespace

void embedding_backward(const Place& place, const EmbeddingShape& shape,
                        const EmbeddingArrays& arrays) {
  SW_CHECK(shape.tokens >= 0 && shape.width >= 0);
  SW_CHECK(shape.table_dtype == shape.dtype || shape.table_dtype == DType::kFloat32);
  if (shape.tokens == 0 || shape.width == 0) {
    return;
  }
  if (place.cuda) {
    cuda::embedding_backward(place, shape, arrays);
    return;
  }
  constexpr std::int64_t kColumns = 64;
  cpu::for_ranges(place, shape.width, kColumns, [&](std::int64_t begin, std::int64_t end) {
    cpu::with_type(shape.dtype, [&]<typename T>() {
      if (shape.table_dtype == shape.dtype) {
        sum_columns<T, T>(shape, arrays, begin, end);
      } else {
        sum_columns<T, float>(shape, arrays, begin, end);
      }
    });
  });
}

std::int64_t embedding_partials(const Place& place, const EmbeddingShape& shape) {
  return place.cuda ? cuda::embedding_partials(shape) : 0;
}

}  // namespace shardwise::kernels
