// One element at a time: the reference of the vector levels, and what other processors run.
#include "shardwise/kernels/cpu/loops.h"

namespace shardwise::kernels::cpu {
namespace {

struct ScalarLanes {
  using F = float;
  static constexpr int kWidth = 1;

  template <typename T>
  static SW_SHARED_INLINE F load(const T* from) {
    return to_float(*from);
  }
  template <typename T>
  static SW_SHARED_INLINE void store(F value, T* to) {
    from_float(value, to);
  }

  struct SquareSum {
    double lanes[16] = {};
    template <typename T>
    SW_SHARED_INLINE void add(const T* from) {
      for (int lane = 0; lane < 16; ++lane) {
        const double value = to_float(from[lane]);
        lanes[lane] += value * value;
      }
    }
    SW_SHARED_INLINE void store(double* out) const {
      for (int lane = 0; lane < 16; ++lane) {
        out[lane] = lanes[lane];
      }
    }
  };
};

constexpr LoopsTable kLoops = make_loops<ScalarLanes>();

}  // namespace

const LoopsTable& scalar_loops() { return kLoops; }

}  // namespace shardwise::kernels::cpu
