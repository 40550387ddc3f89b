// The CUDA side of this module, declared for builds with and without CUDA: cuda/*.cu defines it
// with nvcc, no_cuda/no_cuda.cpp throws. Same meaning as the public functions of the same name.
#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/kernels/activation.h"
#include "shardwise/kernels/boundary.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/float8.h"
#include "shardwise/kernels/norm.h"
#include "shardwise/kernels/rope.h"
#include "shardwise/kernels/types.h"
#include "shardwise/kernels/update.h"

namespace shardwise::kernels {

struct BoundaryRecords;  // boundary_logic.h

namespace cuda {

std::vector<int> architectures();

template <typename Group>
void update(const Place& place, const ChunkTable& table, const std::vector<Group>& groups,
            const StepDecision* decision, const std::uint8_t* active, const std::int32_t* step);
void sum_of_squares(const Place& place, const ChunkTable& table, double* partials);

void fill_boundary_record(const Place& place, const ChunkTable& table, const double* partials,
                          const BoundaryInput& input, void* record);
void finish_boundary(const Place& place, const BoundaryRecords& records, std::int64_t parameters,
                     const BoundaryRule& rule, LossScaleState* state, std::uint8_t* active_out,
                     std::int32_t* step, StepDecision* decision, BoundaryResult* result);

void sum_ranked(const Place& place, void* out, DType out_dtype, const void* in, DType in_dtype,
                int world, std::int64_t n, std::int64_t stride, double scale, bool accumulate);
void copy(const Place& place, void* out, const void* in, std::int64_t bytes);

void norm_forward(const Place& place, const NormShape& shape, const NormForward& arrays);
void norm_backward(const Place& place, const NormShape& shape, const NormBackward& arrays);
std::int64_t norm_partials(const NormShape& shape);

void rope(const Place& place, const RopeShape& shape, const void* from, void* to,
          const float* cosines, const float* sines, const std::int64_t* positions);

void activation_forward(const Place& place, const ActivationShape& shape, const void* input,
                        void* output);
void activation_backward(const Place& place, const ActivationShape& shape, const void* input,
                         const void* output_gradient, void* input_gradient);

void cross_entropy(const Place& place, const CrossEntropyShape& shape, const CrossEntropyRule& rule,
                   const CrossEntropyArrays& arrays);
void rescale(const Place& place, void* array, DType dtype, std::int64_t n, const float* factor);

void embedding_backward(const Place& place, const EmbeddingShape& shape,
                        const EmbeddingArrays& arrays);
std::int64_t embedding_partials(const EmbeddingShape& shape);

void float8_amax(const Place& place, const Float8Shape& shape, const void* input, float* of_rows,
                 float* of_columns);
void float8_quantize(const Place& place, const Float8Shape& shape, const Float8Arrays& arrays);

}  // namespace cuda
}  // namespace shardwise::kernels

// Defines `update` for every group in the present namespace, where its template stands.
#define SW_DEFINE_UPDATE(Group)                                                    \
  template void update(const Place&, const ChunkTable&, const std::vector<Group>&, \
                       const StepDecision*, const std::uint8_t*, const std::int32_t*);
#define SW_DEFINE_UPDATES     \
  SW_DEFINE_UPDATE(AdamGroup) \
  SW_DEFINE_UPDATE(SgdGroup)  \
  SW_DEFINE_UPDATE(LionGroup) \
  SW_DEFINE_UPDATE(AdagradGroup)
