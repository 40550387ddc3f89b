// Null twin of cuda/*.cu for builds without nvcc.
#include "shardwise/base/error.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* name) {
  throw InternalError(std::string(name) +
                      ": CUDA asked for, but this library was built without CUDA");
}

}  // namespace

std::vector<int> architectures() { return {}; }

template <typename Group>
void update(const Place&, const ChunkTable&, const std::vector<Group>&, const StepDecision*,
            const std::uint8_t*, const std::int32_t*) {
  refuse("update");
}

SW_DEFINE_UPDATES

void sum_of_squares(const Place&, const ChunkTable&, double*) { refuse("sum_of_squares"); }

void fill_boundary_record(const Place&, const ChunkTable&, const double*, const BoundaryInput&,
                          void*) {
  refuse("fill_boundary_record");
}

void finish_boundary(const Place&, const BoundaryRecords&, std::int64_t, const BoundaryRule&,
                     LossScaleState*, std::uint8_t*, std::int32_t*, StepDecision*,
                     BoundaryResult*) {
  refuse("finish_boundary");
}

void sum_ranked(const Place&, void*, DType, const void*, DType, int, std::int64_t, std::int64_t,
                double, bool) {
  refuse("sum_ranked");
}

void copy(const Place&, void*, const void*, std::int64_t) { refuse("convert"); }

void norm_forward(const Place&, const NormShape&, const NormForward&) { refuse("norm_forward"); }

void norm_backward(const Place&, const NormShape&, const NormBackward&) { refuse("norm_backward"); }

std::int64_t norm_partials(const NormShape&) { refuse("norm_partials"); }

void rope(const Place&, const RopeShape&, const void*, void*, const float*, const float*,
          const std::int64_t*) {
  refuse("rope");
}

void activation_forward(const Place&, const ActivationShape&, const void*, void*) {
  refuse("activation_forward");
}

void activation_backward(const Place&, const ActivationShape&, const void*, const void*, void*) {
  refuse("activation_backward");
}

void cross_entropy(const Place&, const CrossEntropyShape&, const CrossEntropyRule&,
                   const CrossEntropyArrays&) {
  refuse("cross_entropy");
}

void rescale(const Place&, void*, DType, std::int64_t, const float*) { refuse("rescale"); }

void embedding_backward(const Place&, const EmbeddingShape&, const EmbeddingArrays&) {
  refuse("embedding_backward");
}

std::int64_t embedding_partials(const EmbeddingShape&) { refuse("embedding_partials"); }

void float8_amax(const Place&, const Float8Shape&, const void*, float*, float*) {
  refuse("float8_amax");
}

void float8_quantize(const Place&, const Float8Shape&, const Float8Arrays&) {
  refuse("float8_quantize");
}

}  // namespace shardwise::kernels::cuda
