// Sorted tokens are cut into tiles of equal length. A block sums the runs of equal ids of one tile;
// a run inside the tile goes to the table, the parts of a run that crosses tiles go to partials,
// which a second kernel adds in the order of the tiles. So a token that fills half of a batch is as
// fast as any other, and every sum has one order.
#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 32;  // tokens
// Rows on their way at a time, 64 bytes a thread; more was slower on an H200.
template <typename T>
inline constexpr int kAhead = 8 / sizeof(T);
constexpr int kParts = 2;  // of a tile: the run from the tile before, the run into the next

struct Arguments {
  EmbeddingShape shape;
  EmbeddingArrays arrays;
  bool aligned;
  bool table_is_float;

  __device__ bool counts(std::int64_t id) const {
    return id != shape.padding && id >= 0 && id < shape.vocabulary;
  }
  __device__ float* partial(std::int64_t tile, int part) const {
    return arrays.partials + (kParts * tile + part) * shape.width;
  }
};

__device__ __forceinline__ void add(Floats8& to, const Floats8& values) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    to.at[i] += values.at[i];
  }
}

template <typename W>
__device__ __forceinline__ void write_as(Floats8 sums, W* to, std::int64_t valid, bool accumulate,
                                         bool aligned) {
  if (accumulate) {
    add(sums, unpack(load8(to, valid, aligned)));
  }
  store8(pack<W>(sums), to, valid, aligned);
}

template <typename T>
__device__ __forceinline__ void write_row(const Arguments& a, std::int64_t id, std::int64_t column,
                                          const Floats8& sums) {
  if (!a.counts(id)) {
    return;
  }
  const std::int64_t at = id * a.shape.width + column;
  const std::int64_t valid = a.shape.width - column;
  if (a.table_is_float) {
    write_as(sums, static_cast<float*>(a.arrays.table) + at, valid, a.shape.accumulate, a.aligned);
  } else {
    write_as(sums, static_cast<T*>(a.arrays.table) + at, valid, a.shape.accumulate, a.aligned);
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads, 8) void tile_kernel(const Arguments a) {
  __shared__ std::int64_t ids[kTile + 2];  // with a neighbour on both sides, or −1
  __shared__ std::int64_t order[kTile];
  wait_for_kernel_before();
  let_kernel_behind_begin();
  const std::int64_t tile = blockIdx.x;
  const std::int64_t begin = tile * kTile;
  const int count = static_cast<int>(min(static_cast<std::int64_t>(kTile), a.shape.tokens - begin));
  if (threadIdx.x < kTile + 2) {
    const std::int64_t at = begin + static_cast<std::int64_t>(threadIdx.x) - 1;
    const bool inside = at >= 0 && at < a.shape.tokens;
    ids[threadIdx.x] = inside ? a.arrays.sorted[at] : -1;
    if (threadIdx.x < count) {
      order[threadIdx.x] = a.arrays.order[begin + threadIdx.x];
    }
  }
  __syncthreads();
  const std::int64_t column =
      kWide * (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x);
  const std::int64_t valid = a.shape.width - column;
  if (valid <= 0) {
    return;
  }
  const T* gradients = static_cast<const T*>(a.arrays.gradients) + column;
  bool from_before = ids[0] == ids[1];
  Floats8 sums = {};
  Packed<T> rows[kAhead<T>];
  const auto load = [&](int i) {
    return load8(gradients + order[i] * a.shape.width, valid, a.aligned);
  };
#pragma unroll
  for (int k = 0; k < kAhead<T>; ++k) {
    if (k < count) {
      rows[k] = load(k);
    }
  }
  for (int first = 0; first < count; first += kAhead<T>) {
#pragma unroll
    for (int k = 0; k < kAhead<T>; ++k) {
      const int i = first + k;
      if (i < count) {
        add(sums, unpack(rows[k]));
        if (i + kAhead<T> < count) {
          rows[k] = load(i + kAhead<T>);
        }
        const bool last = i + 1 == count;
        const bool goes_on = ids[i + 1] == ids[i + 2];
        if (last && (goes_on || from_before)) {
          const bool crosses = goes_on && !from_before;
          store8(pack<float>(sums), a.partial(tile, crosses ? 1 : 0) + column, valid, a.aligned);
        } else if (!goes_on) {
          if (from_before) {
            store8(pack<float>(sums), a.partial(tile, 0) + column, valid, a.aligned);
          } else {
            write_row<T>(a, ids[i + 1], column, sums);
          }
          from_before = false;
          sums = Floats8{};
        }
      }
    }
  }
}

// One block for each tile in which a run begins that crosses tiles.
template <typename T>
__global__ __launch_bounds__(kThreads) void crossing_kernel(const Arguments a, std::int64_t tiles) {
  const std::int64_t tile = blockIdx.x;
  const std::int64_t last = (tile + 1) * kTile - 1;
  const std::int64_t before = tile * kTile - 1;
  std::int64_t id = -1;
  bool begins = false;
  if (last + 1 < a.shape.tokens) {
    id = a.arrays.sorted[last];
    begins = a.arrays.sorted[last + 1] == id && (before < 0 || a.arrays.sorted[before] != id);
  }
  wait_for_kernel_before();  // for the partials
  if (!begins) {
    return;
  }
  const std::int64_t column =
      kWide * (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x);
  const std::int64_t valid = a.shape.width - column;
  if (valid <= 0) {
    return;
  }
  Floats8 sums = unpack(load8(a.partial(tile, 1) + column, valid, a.aligned));
#pragma unroll 4
  for (std::int64_t next = tile + 1; next < tiles && a.arrays.sorted[next * kTile] == id; ++next) {
    add(sums, unpack(load8(a.partial(next, 0) + column, valid, a.aligned)));
  }
  write_row<T>(a, id, column, sums);
}

std::int64_t tiles_of(const EmbeddingShape& shape) { return (shape.tokens + kTile - 1) / kTile; }

}  // namespace

void embedding_backward(const Place& place, const EmbeddingShape& shape,
                        const EmbeddingArrays& arrays) {
  const std::int64_t row_bytes = shape.width * element_size(shape.dtype);
  const Arguments arguments{
      .shape = shape,
      .arrays = arrays,
      .aligned = is_aligned16(arrays.gradients, row_bytes) &&
                 is_aligned16(arrays.table, shape.width * element_size(shape.table_dtype)) &&
                 is_aligned16(arrays.partials, shape.width * 4),
      .table_is_float = shape.table_dtype == DType::kFloat32};
  const std::int64_t tiles = tiles_of(shape);
  constexpr std::int64_t kPerBlock = kWide * kThreads;
  const dim3 grid(grid_size(tiles), grid_size((shape.width + kPerBlock - 1) / kPerBlock));
  with_type(shape.dtype, [&]<typename T>() {
    launch_behind(tile_kernel<T>, grid, kThreads, 0, place, arguments);
    launch_behind(crossing_kernel<T>, grid, kThreads, 0, place, arguments, tiles);
  });
}

std::int64_t embedding_partials(const EmbeddingShape& shape) {
  return kParts * tiles_of(shape) * shape.width;
}

}  // namespace shardwise::kernels::cuda
