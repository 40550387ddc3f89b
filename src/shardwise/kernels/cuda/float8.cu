// Two passes over a matrix: one for its largest magnitudes, one that reads it again and writes both
// copies. Magnitudes of bf16 are compared as integers, two in an instruction: that keeps NaN, and
// the order in which blocks merge theirs does not matter.
#include <cuda_fp8.h>

#include <algorithm>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"
#include "shardwise/kernels/float8_scale.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr int kPairs = kWide / 2;  // words of eight numbers

// A block's part of the matrix for largest magnitudes: a warp reads whole rows of it.
constexpr int kAmaxColumns = kWarp * kWide;
constexpr int kAmaxRows = 64;
constexpr int kRowsOfWarp = kAmaxRows / kWarps;  // all on their way at a time
// So many of them below each other, so that a column's magnitude is merged less often.
constexpr int kAmaxParts = 4;

// A block's part of the matrix for the copies: a square, of which each row of both copies is one
// line of 128 bytes. A thread takes four rows of eight columns, twice.
constexpr int kTile = 128;
constexpr int kGroups = kTile / kWide;
constexpr int kQuads = kTile / 4;
constexpr int kQuadsAtATime = kThreads / kGroups;
constexpr int kRounds = kQuads / kQuadsAtATime;
constexpr int kBlocks = 4;  // at least so many on a multiprocessor: fastest on an H200

struct Layout {
  Float8Shape shape;
  unsigned blocks_of_row;
  bool input_aligned;
  bool straight_aligned;
  bool transposed_aligned;
};

__device__ __forceinline__ unsigned largest_of(unsigned pair) {
  return max(pair >> 16, pair & 0xFFFFU);
}

// `largest` are the bits of a bf16 number without its sign. Those of floats that are not negative
// have their order too. Most blocks find that another's is as large, which a read tells faster.
__device__ __forceinline__ void merge(unsigned largest, float* amax) {
  unsigned* const bits = reinterpret_cast<unsigned*>(amax);
  if (__ldcg(bits) < largest << 16) {
    atomicMax(bits, largest << 16);
  }
}

// The columns' magnitudes of all warps: rowwise merged with those of other blocks, column by
// column, else in one number.
template <bool kRowwise>
__device__ __forceinline__ void merge_columns(const unsigned (&of_column)[kPairs],
                                              const Layout& layout, std::int64_t first_column,
                                              float* amax) {
  __shared__ unsigned shared[kWarps][kAmaxColumns / 2];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if constexpr (kRowwise) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      shared[warp][lane * kPairs + i] = of_column[i];
    }
    __syncthreads();
    const int pair = static_cast<int>(threadIdx.x);
    if (pair >= kAmaxColumns / 2) {
      return;
    }
    unsigned largest = shared[0][pair];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) {
      largest = __vmaxu2(largest, shared[i][pair]);
    }
    const std::int64_t column = first_column + 2 * pair;
    if (column < layout.shape.columns) {
      merge(largest & 0xFFFFU, amax + column);
    }
    if (column + 1 < layout.shape.columns) {
      merge(largest >> 16, amax + column + 1);
    }
  } else {
    unsigned largest = of_column[0];
#pragma unroll
    for (int i = 1; i < kPairs; ++i) {
      largest = __vmaxu2(largest, of_column[i]);
    }
    largest = __reduce_max_sync(kAllLanes, largest_of(largest));
    if (lane == 0) {
      shared[warp][0] = largest;
    }
    __syncthreads();
    if (threadIdx.x != 0) {
      return;
    }
#pragma unroll
    for (int i = 1; i < kWarps; ++i) {
      largest = max(largest, shared[i][0]);
    }
    merge(largest, amax);
  }
}

template <bool kRowwise>
__global__ __launch_bounds__(kThreads) void amax_kernel(const Layout layout, const BFloat16* input,
                                                        float* of_rows, float* of_columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first_column =
      static_cast<std::int64_t>(blockIdx.x % layout.blocks_of_row) * kAmaxColumns;
  const std::int64_t column = first_column + lane * kWide;
  const std::int64_t valid = layout.shape.columns - column;
  unsigned of_column[kPairs] = {};
  for (int part = 0; part < kAmaxParts; ++part) {
    const std::int64_t first_row =
        (static_cast<std::int64_t>(blockIdx.x / layout.blocks_of_row) * kAmaxParts + part) *
            kAmaxRows +
        threadIdx.x / kWarp;
    Packed<BFloat16> packed[kRowsOfWarp] = {};
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const std::int64_t row = first_row + i * kWarps;
      if (row < layout.shape.rows && valid > 0) {
        packed[i] =
            load8(input + row * layout.shape.row_stride + column, valid, layout.input_aligned);
      }
    }
    unsigned of_my_row = 0;  // lane i merges the warp's row i
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const unsigned* words = reinterpret_cast<const unsigned*>(&packed[i]);
      unsigned of_row = 0;
#pragma unroll
      for (int word = 0; word < kPairs; ++word) {
        const unsigned magnitudes = words[word] & 0x7FFF7FFFU;
        of_column[word] = __vmaxu2(of_column[word], magnitudes);
        of_row = __vmaxu2(of_row, magnitudes);
      }
      if constexpr (kRowwise) {
        const unsigned largest = __reduce_max_sync(kAllLanes, largest_of(of_row));
        of_my_row = lane == i ? largest : of_my_row;
      }
    }
    if constexpr (kRowwise) {
      const std::int64_t row = first_row + lane * kWarps;
      if (of_rows != nullptr && lane < kRowsOfWarp && row < layout.shape.rows) {
        merge(of_my_row, of_rows + row);
      }
    }
  }
  float* const amax = kRowwise ? of_columns : of_rows;
  if (amax != nullptr) {
    merge_columns<kRowwise>(of_column, layout, first_column, amax);
  }
}

// Two numbers as they lie in memory.
template <Float8 kFormat>
__device__ __forceinline__ unsigned pair_of(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE,
                                  kFormat == Float8::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

// Four rows of eight numbers in fp8, two in a word.
struct Quad {
  unsigned pairs[4][kPairs];
};

// Where a word of four rows lies: kQuads words a column, moved about so that threads that write at
// a time meet in few banks, and sixteen rows stay together.
__device__ __forceinline__ int word_of(int column, int quad) {
  return column * kQuads + (quad ^ (4 * (column / kWide % 8)));
}

__device__ __forceinline__ void keep_transposed(const Quad& quad, unsigned* shared, int column,
                                                int number) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const unsigned upper = quad.pairs[0][i] | quad.pairs[1][i] << 16;
    const unsigned lower = quad.pairs[2][i] | quad.pairs[3][i] << 16;
    shared[word_of(column + 2 * i, number)] = __byte_perm(upper, lower, 0x6420);
    shared[word_of(column + 2 * i + 1, number)] = __byte_perm(upper, lower, 0x7531);
  }
}

// `count` bytes of those that the words hold.
template <typename Words>
__device__ __forceinline__ void store_bytes(const Words& words, std::uint8_t* to,
                                            std::int64_t count, bool aligned) {
  if (aligned && count >= static_cast<std::int64_t>(sizeof(Words))) {
    *reinterpret_cast<Words*>(to) = words;
    return;
  }
  const std::uint8_t* bytes = reinterpret_cast<const std::uint8_t*>(&words);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Words)); ++i) {
    if (i < count) {
      to[i] = bytes[i];
    }
  }
}

// The columns of the block's square, as rows of the transposed copy.
__device__ __forceinline__ void store_transposed(const Layout& layout, const Float8Arrays& a,
                                                 const unsigned* shared, std::int64_t first_row,
                                                 std::int64_t first_column) {
  constexpr int kBytes = sizeof(uint4);
  constexpr int kPieces = kTile / kBytes;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const std::int64_t row = first_row + piece * kBytes;
  for (int i = static_cast<int>(threadIdx.x) / kPieces; i < kTile; i += kThreads / kPieces) {
    const std::int64_t column = first_column + i;
    if (column < layout.shape.columns && row < a.transposed_width) {
      store_bytes(*reinterpret_cast<const uint4*>(shared + word_of(i, 4 * piece)),
                  static_cast<std::uint8_t*>(a.transposed) + column * a.transposed_stride + row,
                  a.transposed_width - row, layout.transposed_aligned);
    }
  }
}

// The factors of a block's rows, then of its columns, a thread each; and their scales, by the
// blocks at the matrix's edges.
__device__ __forceinline__ void find_factors(const Layout& layout, const Float8Arrays& a,
                                             std::int64_t first_row, std::int64_t first_column,
                                             float* factors) {
  static_assert(kThreads == 2 * kTile);
  const Float8Shape& shape = layout.shape;
  const bool of_column = threadIdx.x >= kTile;
  const float* amax = of_column ? a.column_amax : a.row_amax;
  float* scales = of_column ? a.column_scales : a.row_scales;
  if ((of_column ? first_row : first_column) != 0) {
    scales = nullptr;
  }
  std::int64_t number = threadIdx.x % kTile;
  std::int64_t count = 1;
  if (shape.rowwise) {
    number += of_column ? first_column : first_row;
    count = of_column ? shape.columns : shape.rows;
  }
  if (amax != nullptr && number < count) {
    const float largest = amax[number];
    factors[threadIdx.x] = float8_factor(largest, shape);
    if (scales != nullptr) {
      scales[number] = float8_scale(largest, shape);
    }
  }
}

template <Float8 kFormat, bool kRowwise>
__global__ __launch_bounds__(kThreads, kBlocks) void quantize_kernel(const Layout layout,
                                                                     const Float8Arrays a) {
  __shared__ __align__(16) unsigned shared[kTile * kQuads];
  __shared__ __align__(16) float factors[2 * kTile];
  const Float8Shape& shape = layout.shape;
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  const std::int64_t first_row =
      static_cast<std::int64_t>(blockIdx.x / layout.blocks_of_row) * kTile;
  const std::int64_t first_column =
      static_cast<std::int64_t>(blockIdx.x % layout.blocks_of_row) * kTile;
  const std::int64_t column = first_column + group * kWide;
  const std::int64_t valid = shape.columns - column;
  Packed<BFloat16> packed[kRounds][4] = {};
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int quad = static_cast<int>(threadIdx.x) / kGroups + round * kQuadsAtATime;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = first_row + 4 * quad + i;
      if (row < shape.rows && valid > 0) {
        packed[round][i] =
            load8(static_cast<const BFloat16*>(a.input) + row * shape.row_stride + column, valid,
                  layout.input_aligned);
      }
    }
  }
  find_factors(layout, a, first_row, first_column, factors);
  __syncthreads();
  float of_columns[kWide];
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    of_columns[i] = factors[kRowwise ? kTile + group * kWide + i : 0];
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int number = static_cast<int>(threadIdx.x) / kGroups + round * kQuadsAtATime;
    Quad quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = first_row + 4 * number + i;
      const bool inside = row < shape.rows && valid > 0;
      const Floats8 values = unpack(packed[round][i]);
      if (!kRowwise || a.straight != nullptr) {
        const float factor = factors[kRowwise ? 4 * number + i : 0];
#pragma unroll
        for (int k = 0; k < kPairs; ++k) {
          quad.pairs[i][k] =
              pair_of<kFormat>(values.at[2 * k] * factor, values.at[2 * k + 1] * factor);
        }
        if (a.straight != nullptr && inside) {
          const uint2 words = make_uint2(quad.pairs[i][0] | quad.pairs[i][1] << 16,
                                         quad.pairs[i][2] | quad.pairs[i][3] << 16);
          store_bytes(words, static_cast<std::uint8_t*>(a.straight) + row * shape.columns + column,
                      valid, layout.straight_aligned);
        }
      }
      if (kRowwise && a.transposed != nullptr) {
#pragma unroll
        for (int k = 0; k < kPairs; ++k) {
          quad.pairs[i][k] = pair_of<kFormat>(values.at[2 * k] * of_columns[2 * k],
                                              values.at[2 * k + 1] * of_columns[2 * k + 1]);
        }
      }
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        quad.pairs[i][k] = inside ? quad.pairs[i][k] : 0;  // even where factors are NaN
      }
    }
    if (a.transposed != nullptr) {
      keep_transposed(quad, shared, group * kWide, number);
    }
  }
  if (a.transposed != nullptr) {
    __syncthreads();
    store_transposed(layout, a, shared, first_row, first_column);
  }
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Layout layout_of(const Float8Shape& shape, const void* input, int columns_of_block) {
  return {.shape = shape,
          .blocks_of_row = grid_size(ceil_div(shape.columns, columns_of_block)),
          .input_aligned =
              is_aligned16(input, shape.row_stride * static_cast<std::int64_t>(sizeof(BFloat16))),
          .straight_aligned = false,
          .transposed_aligned = false};
}

template <Float8 kFormat>
void launch_quantize(const Place& place, const Layout& layout, unsigned grid,
                     const Float8Arrays& a) {
  const auto kernel =
      layout.shape.rowwise ? quantize_kernel<kFormat, true> : quantize_kernel<kFormat, false>;
  kernel<<<grid, kThreads, 0, stream_of(place)>>>(layout, a);
  check_launch("float8_quantize");
}

}  // namespace

void float8_amax(const Place& place, const Float8Shape& shape, const void* input, float* of_rows,
                 float* of_columns) {
  const Layout layout = layout_of(shape, input, kAmaxColumns);
  const unsigned grid =
      grid_size(ceil_div(shape.rows, kAmaxParts * kAmaxRows) * layout.blocks_of_row);
  const auto kernel = shape.rowwise ? amax_kernel<true> : amax_kernel<false>;
  kernel<<<grid, kThreads, 0, stream_of(place)>>>(layout, static_cast<const BFloat16*>(input),
                                                  of_rows, of_columns);
  check_launch("float8_amax");
}

void float8_quantize(const Place& place, const Float8Shape& shape, const Float8Arrays& a) {
  Layout layout = layout_of(shape, a.input, kTile);
  constexpr int kStraightBytes = sizeof(uint2);
  layout.straight_aligned = reinterpret_cast<std::uintptr_t>(a.straight) % kStraightBytes == 0 &&
                            shape.columns % kStraightBytes == 0;
  layout.transposed_aligned = is_aligned16(a.transposed, a.transposed_stride);
  const std::int64_t rows =
      a.transposed != nullptr ? std::max(shape.rows, a.transposed_width) : shape.rows;
  const unsigned grid = grid_size(ceil_div(rows, kTile) * layout.blocks_of_row);
  if (shape.format == Float8::kE4m3) {
    launch_quantize<Float8::kE4m3>(place, layout, grid, a);
  } else {
    launch_quantize<Float8::kE5m2>(place, layout, grid, a);
  }
}

}  // namespace shardwise::kernels::cuda
