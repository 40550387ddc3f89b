// The layers' CUDA kernels at the sizes of a training step of Llama-3.2-1B in bf16.
//   layer_bench_cuda [tokens, default 16384]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda_bench.h"
#include "shardwise/kernels/activation.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/norm.h"
#include "shardwise/kernels/rope.h"

namespace {

using namespace shardwise::kernels;  // a program of its own
using shardwise::bench::Bench;
using shardwise::bench::random_rows;
using shardwise::bench::require;

constexpr std::int64_t kWidth = 2048;
constexpr std::int64_t kInner = 8192;
constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kKvHeads = 8;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kSequence = 4096;
constexpr std::int64_t kVocabulary = 128256;
constexpr DType kBf16 = DType::kBFloat16;

template <typename T>
T* upload(const std::vector<T>& host) {
  return shardwise::bench::upload(host.data(), host.size());
}

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
    bench.report((name + ", forward"), 2 * rows,
                 [&] { norm_forward(bench.place, shape, forward); });
    forward.residual = residual;
    forward.sum = sum;
    bench.report((name + " + residual, forward"), 4 * rows,
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
    bench.report((name + ", backward"), 3 * rows,
                 [&] { norm_backward(bench.place, shape, backward); });
    backward.sum_gradient = residual;
    bench.report((name + " + residual, backward"), 4 * rows,
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
      bench.report((title + ", forward"), (gated ? 3 : 2) * rows,
                   [&] { activation_forward(bench.place, shape, input, output); });
      bench.report((title + ", backward"), (gated ? 5 : 3) * rows,
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
  measure_norms(bench, tokens);
  measure_rope(bench, tokens);
  measure_activations(bench, tokens);
  measure_cross_entropy(bench);
  measure_embedding(bench, tokens);
}
