#include "shardwise/zero/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shardwise::zero {
namespace {

using params::Range;

// What a rank may own in one round: enough that a small model takes one round, little beside the
// weights of a large one (128 MiB in fp32).
constexpr std::int64_t kRoundElements = std::int64_t{1} << 25;

at::Tensor as_matrices(const at::Tensor& update) {
  return update.dim() == 4 ? update.flatten(1) : update;
}

std::int64_t rows(const at::Tensor& matrices) { return matrices.size(-2); }
std::int64_t columns(const at::Tensor& matrices) { return matrices.size(-1); }

// X := aX + (bA + cA²)X with A = XXᵀ; [..., n, m] with n <= m.
at::Tensor standard_iteration(at::Tensor x, const optim::MuonGroup& group) {
  const auto& [a, b, c] = group.ns_coefficients;
  for (int step = 0; step < group.ns_steps; ++step) {
    const at::Tensor gram = at::matmul(x, x.mT());
    if (x.dim() == 2) {  // as torch.optim.Muon has it, which rounds less often
      x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
    } else {
      x = a * x + at::matmul(b * gram + c * at::matmul(gram, gram), x);
    }
  }
  return x;
}

// The same polynomial, with its factors collected in Q [n, n]: X := QX at the end. After two steps
// X is renewed, since R and Q drift apart in 16 bits (Dao 2026, "Gram Newton-Schulz").
at::Tensor gram_iteration(at::Tensor x, const optim::MuonGroup& group) {
  constexpr int kRenewAt = 2;
  const auto& [a, b, c] = group.ns_coefficients;
  const at::Tensor identity = at::eye(rows(x), x.options());
  at::Tensor r = at::matmul(x, x.mT());
  at::Tensor q;
  for (int step = 0; step < group.ns_steps; ++step) {
    if (step == kRenewAt) {
      x = at::matmul(q, x);
      r = at::matmul(x, x.mT());
      q = at::Tensor();
    }
    const at::Tensor z = b * r + c * at::matmul(r, r);
    q = q.defined() ? a * q + at::matmul(z, q) : z + a * identity;
    if (step + 1 < group.ns_steps && step + 1 != kRenewAt) {
      const at::Tensor rz = a * r + at::matmul(z, r);
      r = a * rz + at::matmul(z, rz);
    }
  }
  return q.defined() ? at::matmul(q, x) : x;
}

at::Tensor norm_of(const at::Tensor& x) {
  return at::linalg_vector_norm(x, 2, at::IntArrayRef({-2, -1}), /*keepdim=*/true);
}

// What the parts of u travel in: the iteration in bf16 starts by rounding to it.
at::ScalarType travel_dtype(const optim::MuonGroup& group) {
  return group.gram ? at::kFloat : at::kBFloat16;
}

at::ScalarType result_dtype(const optim::MuonGroup& group, at::Device device) {
  return !group.gram ? at::kBFloat16 : (device.is_cuda() ? at::kHalf : at::kFloat);
}

double step_size(const MuonMatrix& matrix) {
  const auto& sizes = matrix.address.parameter().sizes;
  const auto height = static_cast<double>(sizes[sizes.size() - 2]);
  const auto width = static_cast<double>(sizes[sizes.size() - 1]);
  const optim::MuonGroup& group = matrix.group;
  return group.lr * (group.match_rms_adamw ? 0.2 * std::sqrt(std::max(height, width))
                                           : std::sqrt(std::max(1.0, height / width)));
}

// This rank's part of u; moves the momentum.
at::Tensor direction(const MuonMatrix& matrix, float multiplier) {
  const double beta = matrix.group.momentum;
  const at::Tensor gradient = at::empty_like(matrix.master).copy_(matrix.gradient).mul_(multiplier);
  matrix.momentum.lerp_(gradient, 1.0 - beta);
  return matrix.group.nesterov ? gradient.lerp_(matrix.momentum, beta) : matrix.momentum;
}

void apply(const MuonMatrix& matrix, const at::Tensor& part) {
  matrix.master.mul_(1.0 - matrix.group.lr * matrix.group.weight_decay);
  matrix.master.add_(part.to(matrix.master.device()), -step_size(matrix));
}

// A whole parameter, flat in the order of its storage, before and after.
at::Tensor orthogonalised_flat(const at::Tensor& flat, const MuonMatrix& matrix) {
  const params::Parameter& parameter = matrix.address.parameter();
  const at::Tensor result =
      orthogonalised(flat.as_strided(parameter.sizes, parameter.strides), matrix.group);
  const at::Tensor out = at::empty_like(flat, result.options());
  out.as_strided(parameter.sizes, parameter.strides).copy_(result);
  return out;
}

// n²m multiplications an iteration, n the short side.
double cost(const MuonMatrix& matrix) {
  const auto& sizes = matrix.address.parameter().sizes;
  const std::int64_t numel = matrix.address.parameter().place.size();
  const bool filter = sizes.size() == 4;
  const std::int64_t height = filter ? sizes[0] : sizes[sizes.size() - 2];
  const std::int64_t width = filter ? numel / std::max<std::int64_t>(height, 1) : sizes.back();
  return static_cast<double>(numel) * static_cast<double>(std::min(height, width));
}

// Matrices that travel together.
struct Round {
  std::vector<const MuonMatrix*> matrices;
  std::vector<int> owners;
};

// Every rank's matrices in their order, at most kRoundElements a rank and round (but at least one).
std::vector<Round> plan_rounds(const std::vector<const MuonMatrix*>& matrices, int ranks) {
  std::vector<double> costs;
  for (const MuonMatrix* matrix : matrices) {
    costs.push_back(cost(*matrix));
  }
  const std::vector<int> owners = muon_owners(costs, ranks);
  std::vector<Round> rounds;
  std::vector<std::size_t> round_of(ranks, 0);
  std::vector<std::int64_t> held(ranks, 0);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const int owner = owners[i];
    const std::int64_t size = matrices[i]->address.parameter().place.size();
    if (held[owner] > 0 && held[owner] + size > kRoundElements) {
      ++round_of[owner];
      held[owner] = 0;
    }
    held[owner] += size;
    rounds.resize(std::max(rounds.size(), round_of[owner] + 1));
    rounds[round_of[owner]].matrices.push_back(matrices[i]);
    rounds[round_of[owner]].owners.push_back(owner);
  }
  return rounds;
}

// One round between the ranks of a channel.
class Exchange {
 public:
  Exchange(const Round& round, float multiplier, comm::Channel& channel, at::Device device)
      : round_(round), multiplier_(multiplier), channel_(channel), device_(device) {
    for (const MuonMatrix* matrix : round_.matrices) {
      elements_ += matrix->address.parameter().place.size();
    }
  }

  void run() {
    const optim::MuonGroup& group = round_.matrices.front()->group;
    std::vector<at::Tensor> sent(channel_.size());
    for (int owner = 0; owner < channel_.size(); ++owner) {
      std::vector<at::Tensor> parts{at::empty({0}, options(travel_dtype(group)))};
      for_matrices_of(owner, [&](const MuonMatrix& matrix) {
        if (matrix.master.numel() > 0) {
          parts.push_back(direction(matrix, multiplier_).to(device_, travel_dtype(group)));
        }
      });
      sent[owner] = at::cat(parts);
    }
    const std::vector<at::Tensor> gathered = to_owners(sent, travel_dtype(group));
    const std::vector<at::Tensor> done = orthogonalise(gathered, result_dtype(group, device_));
    std::vector<at::Tensor> returned(channel_.size());
    for (int owner = 0; owner < channel_.size(); ++owner) {
      returned[owner] = at::empty(sent[owner].sizes(), options(result_dtype(group, device_)));
    }
    channel_.all_to_all(returned, done, elements_, "orthogonal updates of Muon")->wait();
    for (int owner = 0; owner < channel_.size(); ++owner) {
      std::int64_t at = 0;
      for_matrices_of(owner, [&](const MuonMatrix& matrix) {
        const std::int64_t size = matrix.master.numel();
        if (size > 0) {
          apply(matrix, returned[owner].narrow(0, at, size));
        }
        at += size;
      });
    }
  }

 private:
  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(dtype).device(device_);
  }

  template <typename Use>
  void for_matrices_of(int owner, Use&& use) const {
    for (std::size_t i = 0; i < round_.matrices.size(); ++i) {
      if (round_.owners[i] == owner) {
        use(*round_.matrices[i]);
      }
    }
  }

  // The elements of a parameter that rank `rank` holds, counted from the parameter's first.
  static Range part_of(const MuonMatrix& matrix, int rank) {
    const Range& place = matrix.address.parameter().place;
    const Range part = params::intersect(place, matrix.address.segment->layout.shard_of(rank));
    return part.size() == 0 ? Range{} : Range{part.begin - place.begin, part.end - place.begin};
  }

  // What each rank has of the matrices that this rank owns.
  std::vector<at::Tensor> to_owners(const std::vector<at::Tensor>& sent, at::ScalarType dtype) {
    std::vector<at::Tensor> gathered;
    for (int rank = 0; rank < channel_.size(); ++rank) {
      std::int64_t size = 0;
      for_matrices_of(channel_.rank(),
                      [&](const MuonMatrix& matrix) { size += part_of(matrix, rank).size(); });
      gathered.push_back(at::empty({size}, options(dtype)));
    }
    channel_.all_to_all(gathered, sent, elements_, "updates of Muon")->wait();
    return gathered;
  }

  // Takes the parts that each rank sent and gives back what each gets.
  std::vector<at::Tensor> orthogonalise(const std::vector<at::Tensor>& gathered,
                                        at::ScalarType dtype) const {
    std::vector<at::Tensor> done;
    for (const at::Tensor& parts : gathered) {
      done.push_back(at::empty(parts.sizes(), options(dtype)));
    }
    std::vector<std::int64_t> at(channel_.size(), 0);
    for_matrices_of(channel_.rank(), [&](const MuonMatrix& matrix) {
      const std::int64_t numel = matrix.address.parameter().place.size();
      const at::Tensor whole = at::empty({numel}, gathered[0].options());
      for_parts(matrix, [&](int rank, const Range& part) {
        whole.narrow(0, part.begin, part.size())
            .copy_(gathered[rank].narrow(0, at[rank], part.size()));
      });
      const at::Tensor result = orthogonalised_flat(whole, matrix);
      for_parts(matrix, [&](int rank, const Range& part) {
        done[rank]
            .narrow(0, at[rank], part.size())
            .copy_(result.narrow(0, part.begin, part.size()));
        at[rank] += part.size();
      });
    });
    return done;
  }

  template <typename Use>
  void for_parts(const MuonMatrix& matrix, Use&& use) const {
    for (int rank = 0; rank < channel_.size(); ++rank) {
      const Range part = part_of(matrix, rank);
      if (part.size() > 0) {
        use(rank, part);
      }
    }
  }

  const Round& round_;
  float multiplier_;
  comm::Channel& channel_;
  at::Device device_;
  std::int64_t elements_ = 0;  // of all matrices of the round
};

}  // namespace

at::Tensor orthogonalised(const at::Tensor& update, const optim::MuonGroup& group) {
  if (update.numel() == 0) {
    return update.to(result_dtype(group, update.device()));
  }
  at::Tensor x = as_matrices(update);
  const bool tall = rows(x) > columns(x);
  if (group.gram) {
    // Normalised before it is rounded: small gradients would vanish in fp16.
    x = (x / (norm_of(x) + group.eps)).to(result_dtype(group, update.device()));
    x = tall ? x.mT() : x;
    x = rows(x) < columns(x) ? gram_iteration(x, group) : standard_iteration(x, group);
  } else {
    x = x.to(at::kBFloat16);
    x = tall ? x.mT() : x;
    x = standard_iteration(x / norm_of(x).clamp_min(group.eps), group);
  }
  return (tall ? x.mT() : x).reshape(update.sizes());
}

std::vector<int> muon_owners(const std::vector<double>& costs, int ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(ranks, 0.0);
  std::vector<int> owners(costs.size(), 0);
  for (const std::size_t matrix : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += costs[matrix];
    owners[matrix] = static_cast<int>(least - load.begin());
  }
  return owners;
}

void muon_update(const std::vector<MuonMatrix>& matrices, float multiplier, comm::Channel* channel,
                 at::Device device) {
  if (channel == nullptr || channel->size() == 1) {
    for (const MuonMatrix& matrix : matrices) {
      if (matrix.master.numel() > 0) {
        apply(matrix, orthogonalised_flat(direction(matrix, multiplier).to(device), matrix));
      }
    }
    return;
  }
  for (const bool gram : {true, false}) {  // they travel in different dtypes
    std::vector<const MuonMatrix*> alike;
    for (const MuonMatrix& matrix : matrices) {
      if (matrix.group.gram == gram) {
        alike.push_back(&matrix);
      }
    }
    for (const Round& round : plan_rounds(alike, channel->size())) {
      Exchange(round, multiplier, *channel, device).run();
    }
  }
}

}  // namespace shardwise::zero
