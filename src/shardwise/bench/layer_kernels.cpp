#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "shardwise/bench/kernel_timer.h"
#include "shardwise/kernels/activation.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/float8.h"
#include "shardwise/kernels/norm.h"
#include "shardwise/kernels/rope.h"

namespace shardwise::bench {
namespace {

using kernels::DType;

constexpr std::int64_t kWidth = 2048;
constexpr std::int64_t kInner = 8192;
constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kKvHeads = 8;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kSequence = 4096;
constexpr std::int64_t kHeadRows = 4096;  // of cross-entropy, which takes a batch's rows in chunks
constexpr DType kBf16 = DType::kBFloat16;

double bytes_of(std::int64_t bf16_numbers) { return 2.0 * static_cast<double>(bf16_numbers); }

void time_norms(KernelTimer& timer, std::int64_t tokens, bool centred) {
  const kernels::NormShape shape{
      .centred = centred, .rows = tokens, .width = kWidth, .dtype = kBf16, .weight_dtype = kBf16};
  const double rows = bytes_of(tokens * kWidth);
  const at::Tensor x = timer.random(tokens * kWidth);
  const at::Tensor residual = timer.random(tokens * kWidth);
  const at::Tensor sum = timer.random(tokens * kWidth);
  const at::Tensor output = timer.random(tokens * kWidth);
  const at::Tensor weight = timer.random(kWidth);
  const at::Tensor bias = timer.random(kWidth);
  const at::Tensor mean = timer.zeros(tokens, at::kFloat);
  const at::Tensor rstd = timer.zeros(tokens, at::kFloat);
  const at::Tensor partials = timer.zeros(kernels::norm_partials(timer.place(), shape), at::kFloat);
  const std::string name = centred ? "LayerNorm" : "RMSNorm";
  kernels::NormForward forward{.input = x.data_ptr(),
                               .weight = weight.data_ptr(),
                               .output = output.data_ptr(),
                               .mean = mean.data_ptr<float>(),
                               .rstd = rstd.data_ptr<float>()};
  const auto run_forward = [&] { norm_forward(timer.place(), shape, forward); };
  timer.time(name + ", forward", 2 * rows, run_forward);
  forward.residual = residual.data_ptr();
  forward.sum = sum.data_ptr();
  timer.time(name + " + residual, forward", 4 * rows, run_forward);
  kernels::NormBackward backward{.output_gradient = output.data_ptr(),
                                 .x = x.data_ptr(),
                                 .weight = weight.data_ptr(),
                                 .mean = mean.data_ptr<float>(),
                                 .rstd = rstd.data_ptr<float>(),
                                 .input_gradient = sum.data_ptr(),
                                 .weight_gradient = weight.data_ptr(),
                                 .bias_gradient = centred ? bias.data_ptr() : nullptr,
                                 .partials = partials.data_ptr<float>()};
  const auto run_backward = [&] { norm_backward(timer.place(), shape, backward); };
  timer.time(name + ", backward", 3 * rows, run_backward);
  backward.sum_gradient = residual.data_ptr();
  timer.time(name + " + residual, backward", 4 * rows, run_backward);
}

void time_rotation(KernelTimer& timer, std::int64_t tokens) {
  constexpr std::int64_t kRow = (kHeads + 2 * kKvHeads) * kHeadDim;
  const at::Tensor rows = timer.random(tokens * kRow);
  const at::Tensor cosines = timer.zeros(kSequence * kHeadDim / 2, at::kFloat).fill_(0.8);
  const at::Tensor sines = timer.zeros(kSequence * kHeadDim / 2, at::kFloat).fill_(0.6);
  for (bool interleaved : {false, true}) {
    const kernels::RopeShape shape{.dtype = kBf16,
                                   .tokens = tokens,
                                   .row_stride = kRow,
                                   .heads = kHeads + kKvHeads,
                                   .head_dim = kHeadDim,
                                   .rotary_dim = kHeadDim,
                                   .interleaved = interleaved,
                                   .sequence = kSequence};
    timer.time(interleaved ? "rotation, interleaved, in place" : "rotation, halves, in place",
               bytes_of(2 * tokens * (kHeads + kKvHeads) * kHeadDim), [&] {
                 rope(timer.place(), shape, rows.data_ptr(), rows.data_ptr(),
                      cosines.data_ptr<float>(), sines.data_ptr<float>(), nullptr);
               });
  }
}

void time_activations(KernelTimer& timer, std::int64_t tokens) {
  using Kind = kernels::ActivationKind;
  const double rows = bytes_of(tokens * kInner);
  const at::Tensor input = timer.random(2 * tokens * kInner);
  const at::Tensor output = timer.random(tokens * kInner);
  const at::Tensor gradient = timer.random(2 * tokens * kInner);
  const std::pair<Kind, const char*> kinds[] = {
      {Kind::kSilu, "SiLU"}, {Kind::kGelu, "GELU"}, {Kind::kGeluTanh, "GELU by tanh"}};
  for (const auto& [kind, name] : kinds) {
    for (bool gated : {true, false}) {
      const kernels::ActivationShape shape{
          .kind = kind, .gated = gated, .dtype = kBf16, .rows = tokens, .width = kInner};
      const std::string title = std::string(name) + (gated ? ", gated" : "");
      timer.time(title + ", forward", (gated ? 3 : 2) * rows, [&] {
        activation_forward(timer.place(), shape, input.data_ptr(), output.data_ptr());
      });
      timer.time(title + ", backward", (gated ? 5 : 3) * rows, [&] {
        activation_backward(timer.place(), shape, input.data_ptr(), output.data_ptr(),
                            gradient.data_ptr());
      });
    }
  }
}

void time_cross_entropy(KernelTimer& timer, std::int64_t tokens, std::int64_t vocabulary) {
  const std::int64_t rows = std::min(tokens, kHeadRows);
  const at::Tensor logits = timer.random(rows * vocabulary);
  const at::Tensor targets = timer.zeros(rows, at::kLong).random_(vocabulary);
  const at::Tensor losses = timer.zeros(rows, at::kFloat);
  const kernels::CrossEntropyArrays arrays{.logits = logits.data_ptr(),
                                           .targets = targets.data_ptr<std::int64_t>(),
                                           .losses = losses.data_ptr()};
  const kernels::CrossEntropyShape shape{
      .dtype = kBf16, .rows = rows, .vocabulary = vocabulary, .row_stride = vocabulary};
  const std::string name = "cross-entropy, " + std::to_string(rows) + " rows, loss";
  timer.time(name + " and gradient", bytes_of(2 * rows * vocabulary),
             [&] { cross_entropy(timer.place(), shape, {}, arrays); });
  timer.time(name, bytes_of(rows * vocabulary),
             [&] { cross_entropy(timer.place(), shape, {.write_gradient = false}, arrays); });
  const at::Tensor one = timer.zeros(1, at::kFloat).fill_(1);
  timer.time("rescale by 1", 0, [&] {
    rescale(timer.place(), logits.data_ptr(), kBf16, rows * vocabulary, one.data_ptr<float>());
  });
}

void time_embedding(KernelTimer& timer, std::int64_t tokens, std::int64_t vocabulary) {
  const auto [sorted, order] = timer.zeros(tokens, at::kLong).random_(vocabulary).sort();
  const std::int64_t seen = std::get<0>(at::unique_consecutive(sorted)).numel();
  const kernels::EmbeddingShape shape{.dtype = kBf16,
                                      .table_dtype = kBf16,
                                      .tokens = tokens,
                                      .width = kWidth,
                                      .vocabulary = vocabulary};
  const at::Tensor gradients = timer.random(tokens * kWidth);
  const at::Tensor table = timer.zeros(vocabulary * kWidth, at::kBFloat16);
  const at::Tensor partials =
      timer.zeros(kernels::embedding_partials(timer.place(), shape), at::kFloat);
  const kernels::EmbeddingArrays arrays{.sorted = sorted.const_data_ptr<std::int64_t>(),
                                        .order = order.const_data_ptr<std::int64_t>(),
                                        .gradients = gradients.data_ptr(),
                                        .table = table.data_ptr(),
                                        .partials = partials.data_ptr<float>()};
  timer.time("embedding, backward of sorted tokens", bytes_of((tokens + seen) * kWidth),
             [&] { embedding_backward(timer.place(), shape, arrays); });
}

// The two passes over an operand: its largest magnitudes, and its copies.
void time_float8(KernelTimer& timer, std::int64_t tokens) {
  const double numbers = static_cast<double>(tokens * kInner);
  const at::Tensor input = timer.random(tokens * kInner);
  const at::Tensor straight = timer.zeros(tokens * kInner, at::kByte);
  const at::Tensor transposed = timer.zeros(tokens * kInner, at::kByte);
  // A launch finds zeros, as in training: merging with what is there already would be faster.
  constexpr std::int64_t kFresh = 64;  // more than launches
  const at::Tensor amax = timer.zeros(kFresh * (tokens + kInner), at::kFloat);
  const at::Tensor scales = timer.zeros(tokens + kInner, at::kFloat);
  for (bool rowwise : {false, true}) {
    const kernels::Float8Shape shape{
        .rows = tokens, .columns = kInner, .row_stride = kInner, .rowwise = rowwise};
    const std::string name = rowwise ? "fp8, rowwise" : "fp8, tensorwise";
    const std::int64_t columns_at = rowwise ? tokens : 0;
    amax.zero_();
    std::int64_t launch = 0;
    timer.time(name + ", largest magnitudes", 2 * numbers, [&] {
      float* const fresh = amax.data_ptr<float>() + launch++ % kFresh * (tokens + kInner);
      float8_amax(timer.place(), shape, input.data_ptr(), fresh, fresh + columns_at);
    });
    const auto time_copies = [&](const char* copies, bool as_it_is, bool turned) {
      const kernels::Float8Arrays arrays{.input = input.data_ptr(),
                                         .row_amax = amax.data_ptr<float>(),
                                         .column_amax = amax.data_ptr<float>() + columns_at,
                                         .row_scales = scales.data_ptr<float>(),
                                         .column_scales = scales.data_ptr<float>() + columns_at,
                                         .straight = as_it_is ? straight.data_ptr() : nullptr,
                                         .transposed = turned ? transposed.data_ptr() : nullptr,
                                         .transposed_stride = tokens,
                                         .transposed_width = tokens};
      timer.time(name + copies, (2 + as_it_is + turned) * numbers,
                 [&] { float8_quantize(timer.place(), shape, arrays); });
    };
    time_copies(", both copies", true, true);
    time_copies(", straight", true, false);
    time_copies(", transposed", false, true);
  }
}

}  // namespace

void time_layer_kernels(KernelTimer& timer, const KernelBenchOptions& options) {
  time_norms(timer, options.tokens, /*centred=*/false);
  time_norms(timer, options.tokens, /*centred=*/true);
  time_rotation(timer, options.tokens);
  time_activations(timer, options.tokens);
  time_cross_entropy(timer, options.tokens, options.vocabulary);
  time_embedding(timer, options.tokens, options.vocabulary);
  time_float8(timer, options.tokens);
}

}  // namespace shardwise::bench
