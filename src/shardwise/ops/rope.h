// Rotary position embeddings of the fused q, k, v rows (formula and source: kernels/rope.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise::ops {

// Rotates the first `heads` heads of each row; what follows them and the dimensions of a head
// beyond twice the tables' width stay. rows: [..., seq, row], row a multiple of head_dim: heads
// side by side, such as q, k and v. cosines, sines: fp32 [positions, rotary_dim / 2], no gradient.
// positions: int64, the shape of rows without its last dimension; none: the index in seq. On CUDA
// positions are not checked. interleaved: pairs are neighbours (GPT-J); otherwise a head's halves
// (GPT-NeoX, Llama).
at::Tensor rope(const at::Tensor& rows, const at::Tensor& cosines, const at::Tensor& sines,
                const std::optional<at::Tensor>& positions, std::int64_t heads,
                std::int64_t head_dim, bool interleaved);

// The same in place: for rows that nothing else reads, such as a product that was just made.
at::Tensor rope_in_place(const at::Tensor& rows, const at::Tensor& cosines, const at::Tensor& sines,
                         const std::optional<at::Tensor>& positions, std::int64_t heads,
                         std::int64_t head_dim, bool interleaved);

// What the above are made of; no autograd. `inverse` rotates back.
at::Tensor rotate(const at::Tensor& rows, const at::Tensor& cosines, const at::Tensor& sines,
                  const std::optional<at::Tensor>& positions, std::int64_t heads,
                  std::int64_t head_dim, bool interleaved, bool inverse);
at::Tensor rotate_shapes(const at::Tensor& rows, const at::Tensor& cosines, const at::Tensor& sines,
                         const std::optional<at::Tensor>& positions, std::int64_t heads,
                         std::int64_t head_dim, bool interleaved, bool inverse);

}  // namespace shardwise::ops
