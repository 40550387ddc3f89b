// Note [Choice of attention]
// Whole rows: cuDNN's on GPUs from Hopper on where it can (16 bits, head_dim up to 128 and a
// multiple of 8, no dropout); elsewhere, and in deterministic mode, torch chooses, which is flash
// attention in 16 bits. Documents of one length are rows of a larger batch.
//
// Windows and documents of other lengths: torch's flash attention on GPUs in 16 bits, which skips
// what no token sees. Not cuDNN's: torch 2.11 passes it no window, and for documents builds its
// plan anew at each call, 42 ms by https://github.com/pytorch/pytorch/pull/191576
// (bench/attention.py measures it).
//
// Everything else (fp32, fp64, CPUs, other heads): blocks of rows with a mask, each over the keys
// that the longest document or the window lets it reach, so that memory follows these and not the
// square of the row.
#include "shardwise/ops/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>

#include "shardwise/base/check.h"
#include "shardwise/device/launch_point.h"

namespace shardwise::ops {
namespace {

using at::Tensor;

// Rows of one block under a mask: fewer would be many small products, more a large mask.
constexpr std::int64_t kLeastBlock = 64, kLargestBlock = 512;

// A size that the choice of kernels depends on; under a tracer it becomes a constant.
std::int64_t fixed(const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); }

class AtLaunchPoint : public torch::autograd::FunctionPreHook {
 public:
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    device::reach_launch_point();
    return gradients;
  }
};

// What attention made; its backward begins with a launch point.
Tensor with_launch_point(Tensor attended) {
  const bool traced = attended.key_set().has(c10::DispatchKey::Python);
  if (attended.requires_grad() && !traced) {
    attended.grad_fn()->add_pre_hook(std::make_unique<AtLaunchPoint>());
  }
  return attended;
}

bool grouped(const Tensor& q, const Tensor& k) { return q.sym_size(1) != k.sym_size(1); }

// [batch, heads, seq, head_dim] to [batch, seq, heads · head_dim].
Tensor side_by_side(const Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

Tensor of_whole_rows(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                     double dropout) {
  const bool recorded =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  return side_by_side(with_launch_point(
      prefers_cudnn(q, k, v, dropout)
          ? std::get<0>(at::_scaled_dot_product_cudnn_attention(
                q, k, v, /*attn_bias=*/{}, /*compute_log_sumexp=*/recorded, dropout,
                /*is_causal=*/true, /*return_debug_mask=*/false, scale))
          : at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, dropout,
                                             /*is_causal=*/true, scale,
                                             /*enable_gqa=*/grouped(q, k))));
}

// [batch, heads, seq, head_dim] to the same tokens as `rows` rows.
Tensor as_rows(const Tensor& heads, std::int64_t rows) {
  return heads.transpose(1, 2).flatten(0, 1).unflatten(0, {rows, -1}).transpose(1, 2);
}

Tensor by_flash(const Tensor& q, const Tensor& k, const Tensor& v, double scale, double dropout,
                const CausalMask& mask) {
  std::optional<std::int64_t> before, after;
  if (mask.window > 0) {
    before = mask.window - 1;
    after = 0;
  }
  const auto attend = [&](const auto& layout, const std::optional<Tensor>& offsets,
                          std::int64_t longest) {
    return with_launch_point(std::get<0>(at::_flash_attention_forward(
        layout(q), layout(k), layout(v), offsets, offsets, longest, longest, dropout,
        /*is_causal=*/true, /*return_debug_mask=*/false, scale, before, after)));
  };
  const std::int64_t batch = fixed(q.sym_size(0)), sequence = fixed(q.sym_size(2));
  if (!mask.documents) {
    return attend([](const Tensor& heads) { return heads.transpose(1, 2); }, std::nullopt, sequence)
        .flatten(2);
  }
  // At 1 torch takes the queries for those of a generation, one for each document.
  const std::int64_t longest = std::max<std::int64_t>(mask.documents->longest, 2);
  return attend([](const Tensor& heads) { return heads.transpose(1, 2).flatten(0, 1); },
                mask.documents->offsets, longest)
      .reshape({batch, sequence, -1});
}

// How many tokens, itself and those right before, a token sees at most.
std::int64_t reach_of(const CausalMask& mask, std::int64_t sequence) {
  std::int64_t reach = sequence;
  if (mask.window > 0) {
    reach = std::min(reach, mask.window);
  }
  if (mask.documents) {
    reach = std::min(reach, mask.documents->longest);
  }
  return std::max<std::int64_t>(reach, 1);
}

Tensor by_blocks(const Tensor& q, const Tensor& k, const Tensor& v, double scale, double dropout,
                 const CausalMask& mask) {
  const std::int64_t batch = fixed(q.sym_size(0)), sequence = fixed(q.sym_size(2));
  const std::int64_t reach = reach_of(mask, sequence);
  const std::int64_t block = std::clamp(reach, kLeastBlock, kLargestBlock);
  const Tensor places = at::arange(sequence, q.options().dtype(at::kLong));
  const Tensor numbers =
      mask.documents ? document_numbers(*mask.documents, batch, sequence).unsqueeze(1) : Tensor();
  std::vector<Tensor> parts;
  for (std::int64_t begin = 0; begin < sequence; begin += block) {
    const std::int64_t end = std::min(begin + block, sequence);
    const std::int64_t first = std::max<std::int64_t>(begin - reach + 1, 0);
    const Tensor queries = places.slice(0, begin, end).unsqueeze(1);
    const Tensor keys = places.slice(0, first, end);
    Tensor seen = at::logical_and(keys <= queries, keys > queries - reach);
    if (mask.documents) {
      const Tensor own =
          numbers.slice(2, begin, end).unsqueeze(3) == numbers.slice(2, first, end).unsqueeze(2);
      seen = at::logical_and(seen, own);  // [batch, 1, queries, keys]
    }
    parts.push_back(at::scaled_dot_product_attention(
        q.slice(2, begin, end), k.slice(2, first, end), v.slice(2, first, end), seen, dropout,
        /*is_causal=*/false, scale, /*enable_gqa=*/grouped(q, k)));
  }
  return side_by_side(with_launch_point(at::cat(parts, 2)));
}

}  // namespace

Tensor causal_attention_of_heads(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                 double dropout, const CausalMask& mask) {
  SW_USER_CHECK(UsageError, mask.window >= 0, "attention: window is ", mask.window,
                "; it must be the number of tokens that each sees, or 0 for all");
  if (q.sym_numel() == 0) {
    return of_whole_rows(q, k, v, scale, dropout);
  }
  CausalMask needed = mask;
  if (mask.window > 0 && q.sym_size(2) <= mask.window) {
    needed.window = 0;
  }
  if (needed.documents) {
    const std::int64_t batch = fixed(q.sym_size(0)), sequence = fixed(q.sym_size(2));
    const std::int64_t longest = std::min(needed.documents->longest, sequence);
    needed.documents->longest = longest;
    const std::int64_t count = fixed(needed.documents->offsets.sym_size(0)) - 1;
    if (needed.window >= longest) {
      needed.window = 0;
    }
    if (count * longest == batch * sequence) {  // all as long as the longest
      needed.documents.reset();
      return causal_attention_of_heads(as_rows(q, count), as_rows(k, count), as_rows(v, count),
                                       scale, dropout, needed)
          .reshape({batch, sequence, -1});
    }
  }
  if (needed.window == 0 && !needed.documents) {
    return of_whole_rows(q, k, v, scale, dropout);
  }
  return (takes_flash(q) ? by_flash : by_blocks)(q, k, v, scale, dropout, needed);
}

Tensor causal_attention(const Tensor& rows, const AttentionShape& shape, const CausalMask& mask) {
  const std::int64_t q_width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  SW_CHECK_EQ(rows.size(-1), q_width + 2 * kv_width);
  const std::vector<Tensor> parts = rows.split_with_sizes({q_width, kv_width, kv_width}, -1);
  const auto heads_of = [&](const Tensor& part) {
    return part.unflatten(-1, {-1, shape.head_dim}).transpose(1, 2);
  };
  return causal_attention_of_heads(heads_of(parts[0]), heads_of(parts[1]), heads_of(parts[2]),
                                   shape.scale, shape.dropout, mask);
}

}  // namespace shardwise::ops
