// Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") over shards:
//   m = lerp(m, g, 1−β);   u = nesterov ? lerp(g, m, β) : m;   o = orthogonalised u
//   p = p·(1 − lr·wd) − lr·s·o,   s = √max(1, rows ÷ columns), or 0.2·√max(rows, columns)
// with the order of operations of torch.optim.Muon and of DeepSpeed's Muon.
//
// Note [Whole matrices from shards]
// All but the orthogonalisation treats each element by itself and stays where the shards are, so
// momentum and master weights take 1/N of the memory and never travel. A matrix has one owner among
// the ranks of the shard group. The ranks send it their parts of u, it orthogonalises the whole and
// sends the parts back: two all-to-alls in which each rank moves about Ψ/N elements. Owners are
// chosen from shapes alone, the costliest matrix first, each to the rank that has least to do, so
// that every rank knows them without asking. Matrices go in rounds of bounded size, so that no rank
// holds all that it owns at once. Groups that hold whole parameters (stage 0) need none of this:
// each rank computes all matrices, and the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/optim/update_rule.h"
#include "shardwise/params/registry.h"

namespace shardwise::zero {

// A parameter that moves, and this rank's part of it: flat, in the order of the storage, without
// elements where this rank has none. Master and momentum are fp32 on one device.
struct MuonMatrix {
  params::ParameterAddress address;
  at::Tensor master, momentum;
  at::Tensor gradient;  // as it was reduced: any dtype and device, not yet multiplied
  optim::MuonGroup group;
};

// Two dimensions are a matrix; four are a filter and become [out, rest]; all others are stacks of
// matrices in the last two, orthogonalised one by one. Collective over `channel`, with the same
// parameters on every rank; null: every rank holds whole parameters. The update takes the gradients
// times `multiplier`. Orthogonalises on `device`, in bf16, or for the Gram iteration in fp16 on a
// GPU and in fp32 on a CPU.
void muon_update(const std::vector<MuonMatrix>& matrices, float multiplier, comm::Channel* channel,
                 at::Device device);

// The owner of each matrix among `ranks`, from what each costs.
std::vector<int> muon_owners(const std::vector<double>& costs, int ranks);

// What Muon makes of `update`, of the parameter's sizes, on any device; in the dtype of the
// arithmetic, see muon_update.
at::Tensor orthogonalised(const at::Tensor& update, const optim::MuonGroup& group);

}  // namespace shardwise::zero
