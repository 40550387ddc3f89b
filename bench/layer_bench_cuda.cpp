// The layers' CUDA kernels at the sizes of a training step of Llama-3.2-1B in bf16: microseconds,
// gigabytes a second of the least memory traffic, and the share of a copy measured in the same run.
//   layer_bench_cuda [tokens, default 16384]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/kernels/activation.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/norm.h"
#include "shardwise/kernels/reduce.h"
#include "shardwise/kernels/rope.h"

namespace {

using namespace shardwise::kernels;  // a program of its own

constexpr int kRepeats = 50;
constexpr std::int64_t kWidth = 2048;
constexpr std::int64_t kInner = 8192;
constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kKvHeads = 8;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kSequence = 4096;
constexpr std::int64_t kVocabulary = 128256;
constexpr DType kBf16 = DType::kBFloat16;

void require(cudaError_t status) {
  if (status != cudaSuccess) {
    throw std::runtime_error(cudaGetErrorString(status));
  }
}

// Device memory with small random bf16 numbers, freed with the process.
void* random_rows(std::int64_t elements) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> host(std::min<std::int64_t>(elements, 1 << 22));
  for (std::uint16_t& bits : host) {
    bits = static_cast<std::uint16_t>(0x3F00 | (random() & 0x80FF));  // ±0.5 … ±2
  }
  void* memory = nullptr;
  require(cudaMalloc(&memory, static_cast<std::size_t>(2 * elements)));
  for (std::int64_t at = 0; at < elements; at += static_cast<std::int64_t>(host.size())) {
    const auto n = std::min<std::int64_t>(elements - at, static_cast<std::int64_t>(host.size()));
    require(cudaMemcpy(static_cast<char*>(memory) + 2 * at, host.data(),
                       static_cast<std::size_t>(2 * n), cudaMemcpyHostToDevice));
  }
  return memory;
}

template <typename T>
T* upload(const std::vector<T>& host) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, host.size() * sizeof(T) + 1));
  require(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

class Bench {
 public:
  Bench() {
    require(cudaEventCreate(&start_));
    require(cudaEventCreate(&stop_));
  }

  // `bytes`: the least that memory must move.
  double report(const char* name, double bytes, const std::function<void()>& launch) {
    for (int i = 0; i < 5; ++i) {
      launch();
    }
    require(cudaEventRecord(start_));
    for (int i = 0; i < kRepeats; ++i) {
      launch();
    }
    require(cudaEventRecord(stop_));
    require(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start_, stop_));
    const double microseconds = 1000.0 * milliseconds / kRepeats;
    const double rate = bytes / microseconds / 1e3;
    std::printf("%-44s %9.1f us %8.0f GB/s", name, microseconds, rate);
    if (copy_rate_ > 0) {
      std::printf(" %5.1f %% of a copy", 100 * rate / copy_rate_);
    }
    std::printf("\n");
    return rate;
  }

  void measure_copy() {
    constexpr std::int64_t kElements = 1 << 28;
    void* from = random_rows(2 * kElements);
    void* to = random_rows(2 * kElements);
    const double by_engine = report("copy, 1 GiB, cudaMemcpyAsync", 8.0 * kElements, [&] {
      convert(place, to, DType::kFloat32, from, DType::kFloat32, kElements, false);
    });
    const double by_kernel = report("copy, 1 GiB, a kernel", 8.0 * kElements, [&] {
      sum_ranked(place, to, DType::kFloat32, from, DType::kFloat32, 1, kElements, 1.0, false);
    });
    copy_rate_ = std::max(by_engine, by_kernel);
    require(cudaFree(from));
    require(cudaFree(to));
  }

  Place place{.cuda = true};

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  double copy_rate_ = 0;
};

void measure_norms(Bench& bench, std::int64_t tokens) {
  const double rows = 2.0 * static_cast<double>(tokens * kWidth);
  void* const x = random_rows(tokens * kWidth);
  void* const residual = random_rows(tokens * kWidth);
  void* const sum = random_rows(tokens * kWidth);
  void* const output = random_rows(tokens * kWidth);
  void* const weight = random_rows(kWidth);
  void* const bias = random_rows(kWidth);
  auto* const mean = static_cast<float*>(random_rows(2 * tokens));
  auto* const rstd = static_cast<float*>(random_rows(2 * tokens));
  for (bool centred : {false, true}) {
    const NormShape shape{
        .centred = centred, .rows = tokens, .width = kWidth, .dtype = kBf16, .weight_dtype = kBf16};
    auto* const partials = static_cast<float*>(random_rows(2 * norm_partials(bench.place, shape)));
    const std::string name = centred ? "LayerNorm" : "RMSNorm";
    NormForward forward{.input = x, .weight = weight, .output = output, .mean = mean, .rstd = rstd};
    bench.report((name + ", forward").c_str(), 2 * rows,
                 [&] { norm_forward(bench.place, shape, forward); });
    forward.residual = residual;
    forward.sum = sum;
    bench.report((name + " + residual, forward").c_str(), 4 * rows,
                 [&] { norm_forward(bench.place, shape, forward); });
    NormBackward backward{.output_gradient = output,
                          .x = x,
                          .weight = weight,
                          .mean = mean,
                          .rstd = rstd,
                          .input_gradient = sum,
                          .weight_gradient = weight,
                          .bias_gradient = centred ? bias : nullptr,
                          .partials = partials};
    bench.report((name + ", backward").c_str(), 3 * rows,
                 [&] { norm_backward(bench.place, shape, backward); });
    backward.sum_gradient = residual;
    bench.report((name + " + residual, backward").c_str(), 4 * rows,
                 [&] { norm_backward(bench.place, shape, backward); });
  }
  for (void* memory : {x, residual, sum, output}) {
    require(cudaFree(memory));
  }
}

void measure_rope(Bench& bench, std::int64_t tokens) {
  constexpr std::int64_t kRow = (kHeads + 2 * kKvHeads) * kHeadDim;
  void* const rows = random_rows(tokens * kRow);
  auto* const cosines = static_cast<float*>(random_rows(kSequence * kHeadDim));
  auto* const sines = static_cast<float*>(random_rows(kSequence * kHeadDim));
  for (bool interleaved : {false, true}) {
    const RopeShape shape{.dtype = kBf16,
                          .tokens = tokens,
                          .row_stride = kRow,
                          .heads = kHeads + kKvHeads,
                          .head_dim = kHeadDim,
                          .rotary_dim = kHeadDim,
                          .interleaved = interleaved,
                          .sequence = kSequence};
    bench.report(interleaved ? "rope, interleaved, in place" : "rope, halves, in place",
                 4.0 * static_cast<double>(tokens * (kHeads + kKvHeads) * kHeadDim),
                 [&] { rope(bench.place, shape, rows, rows, cosines, sines, nullptr); });
  }
  require(cudaFree(rows));
}

void measure_activations(Bench& bench, std::int64_t tokens) {
  const double rows = 2.0 * static_cast<double>(tokens * kInner);
  void* const input = random_rows(2 * tokens * kInner);
  void* const output = random_rows(tokens * kInner);
  void* const gradient = random_rows(2 * tokens * kInner);
  const std::pair<ActivationKind, const char*> kinds[] = {
      {ActivationKind::kSilu, "SiLU"},
      {ActivationKind::kGelu, "GELU"},
      {ActivationKind::kGeluTanh, "GELU by tanh"}};
  for (const auto& [kind, name] : kinds) {
    for (bool gated : {true, false}) {
      const ActivationShape shape{
          .kind = kind, .gated = gated, .dtype = kBf16, .rows = tokens, .width = kInner};
      const std::string title = std::string(name) + (gated ? ", gated" : "");
      bench.report((title + ", forward").c_str(), (gated ? 3 : 2) * rows,
                   [&] { activation_forward(bench.place, shape, input, output); });
      bench.report((title + ", backward").c_str(), (gated ? 5 : 3) * rows,
                   [&] { activation_backward(bench.place, shape, input, output, gradient); });
    }
  }
  for (void* memory : {input, output, gradient}) {
    require(cudaFree(memory));
  }
}

void measure_cross_entropy(Bench& bench) {
  constexpr std::int64_t kRows = 4096;
  void* const logits = random_rows(kRows * kVocabulary);
  std::vector<std::int64_t> targets(kRows);
  std::iota(targets.begin(), targets.end(), 1000);
  const CrossEntropyArrays arrays{
      .logits = logits, .targets = upload(targets), .losses = random_rows(2 * kRows)};
  const CrossEntropyShape shape{
      .dtype = kBf16, .rows = kRows, .vocabulary = kVocabulary, .row_stride = kVocabulary};
  const double row_bytes = 2.0 * static_cast<double>(kRows * kVocabulary);
  bench.report("cross-entropy, 4096 rows, loss and gradient", 2 * row_bytes,
               [&] { cross_entropy(bench.place, shape, {}, arrays); });
  bench.report("cross-entropy, 4096 rows, loss", row_bytes,
               [&] { cross_entropy(bench.place, shape, {.write_gradient = false}, arrays); });
  auto* const one = upload(std::vector<float>{1.0F});
  bench.report("rescale by 1", 0,
               [&] { rescale(bench.place, logits, kBf16, kRows * kVocabulary, one); });
  require(cudaFree(logits));
}

void measure_embedding(Bench& bench, std::int64_t tokens) {
  std::mt19937 random(2);
  std::vector<std::int64_t> ids(tokens);
  for (std::int64_t& id : ids) {
    id = static_cast<std::int64_t>(random() % kVocabulary);
  }
  std::vector<std::int64_t> order(tokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return ids[a] < ids[b]; });
  std::sort(ids.begin(), ids.end());
  double rows = static_cast<double>(tokens);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    rows += i == 0 || ids[i] != ids[i - 1] ? 1 : 0;
  }
  const EmbeddingShape shape{.dtype = kBf16,
                             .table_dtype = kBf16,
                             .tokens = tokens,
                             .width = kWidth,
                             .vocabulary = kVocabulary};
  const EmbeddingArrays arrays{
      .sorted = upload(ids),
      .order = upload(order),
      .gradients = random_rows(tokens * kWidth),
      .table = random_rows(kVocabulary * kWidth),
      .partials = static_cast<float*>(random_rows(2 * embedding_partials(bench.place, shape)))};
  bench.report("embedding, backward of sorted tokens", 2 * rows * kWidth,
               [&] { embedding_backward(bench.place, shape, arrays); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::max<std::int64_t>(std::atoll(argv[1]), 1) : 16384;
  Bench bench;
  bench.measure_copy();
  measure_norms(bench, tokens);
  measure_rope(bench, tokens);
  measure_activations(bench, tokens);
  measure_cross_entropy(bench);
  measure_embedding(bench, tokens);
}
