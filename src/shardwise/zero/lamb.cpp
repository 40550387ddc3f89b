#include "shardwise/zero/lamb.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace shardwise::zero {
namespace {

at::Tensor direction(const LambPiece& piece) {
  const optim::LambGroup& group = piece.group;
  const at::Tensor root = group.eps_inside_sqrt ? (piece.exp_avg_sq + group.eps).sqrt_()
                                                : piece.exp_avg_sq.sqrt().add_(group.eps);
  return (piece.exp_avg / root).add_(piece.master, group.weight_decay);
}

at::Tensor square_sum(const at::Tensor& values) {
  return at::linalg_vector_norm(values, 2, c10::nullopt, /*keepdim=*/false, at::kDouble).square();
}

double step_size(const LambPiece& piece) {
  const optim::LambGroup& group = piece.group;
  if (!group.bias_correction) {
    return group.lr;
  }
  return group.lr * std::sqrt(1.0 - std::pow(group.beta2, piece.step)) /
         (1.0 - std::pow(group.beta1, piece.step));
}

// Squared norms of masters and directions, [parameters, 2], over all ranks; on the host. Every rank
// adds the ranks' parts in the same order.
at::Tensor norms(const at::Tensor& mine, comm::Channel* channel, at::Device device) {
  if (channel == nullptr || channel->size() == 1) {
    return mine.cpu();
  }
  const at::Tensor part = mine.to(device);
  const at::Tensor all = at::empty({channel->size(), mine.size(0), 2}, part.options());
  channel->all_gather(all, part, "the norms of LAMB")->wait();
  return all.cpu().sum(0);
}

}  // namespace

void lamb_update(const std::vector<LambPiece>& pieces, int parameters, comm::Channel* channel,
                 at::Device device) {
  at::Tensor mine =
      at::zeros({parameters, 2}, pieces.empty() ? at::TensorOptions(at::kDouble).device(device)
                                                : pieces[0].master.options().dtype(at::kDouble));
  for (const LambPiece& piece : pieces) {
    const optim::LambGroup& group = piece.group;
    piece.exp_avg.mul_(group.beta1).add_(piece.gradient, 1.0 - group.beta1);
    piece.exp_avg_sq.mul_(group.beta2).addcmul_(piece.gradient, piece.gradient, 1.0 - group.beta2);
    const at::Tensor row = mine[piece.parameter];
    row[0].copy_(square_sum(piece.master));
    row[1].copy_(square_sum(direction(piece)));
  }
  const at::Tensor squares = norms(mine, channel, device);
  const auto square = squares.accessor<double, 2>();
  for (const LambPiece& piece : pieces) {
    const double weight = std::sqrt(square[piece.parameter][0]);
    const double update = std::sqrt(square[piece.parameter][1]);
    double ratio = 1.0;
    if (weight != 0 && update != 0) {
      ratio = std::max(std::min(weight / update, piece.group.max_coeff), piece.group.min_coeff);
    }
    piece.master.sub_(direction(piece), step_size(piece) * ratio);
  }
}

}  // namespace shardwise::zero
