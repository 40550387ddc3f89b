// Eight floats at a time: AVX2, FMA and F16C (2013 and later).
#include "shardwise/kernels/cpu/loops_table.h"
#include "shardwise/kernels/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <type_traits>

// No header below but loops.h; the reason is there.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace shardwise::kernels::cpu {
namespace {

struct Floats8 {
  __m256 r;
  SW_SHARED_INLINE explicit Floats8(__m256 value) : r(value) {}
  SW_SHARED_INLINE explicit Floats8(float value) : r(_mm256_set1_ps(value)) {}
};

SW_SHARED_INLINE Floats8 operator+(Floats8 a, Floats8 b) {
  return Floats8(_mm256_add_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats8 operator-(Floats8 a, Floats8 b) {
  return Floats8(_mm256_sub_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats8 operator*(Floats8 a, Floats8 b) {
  return Floats8(_mm256_mul_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats8 operator/(Floats8 a, Floats8 b) {
  return Floats8(_mm256_div_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats8 fused_multiply_add(Floats8 a, Floats8 b, Floats8 c) {
  return Floats8(_mm256_fmadd_ps(a.r, b.r, c.r));
}
SW_SHARED_INLINE Floats8 square_root(Floats8 a) { return Floats8(_mm256_sqrt_ps(a.r)); }
SW_SHARED_INLINE Floats8 sign_of(Floats8 a) {
  const __m256 zero = _mm256_setzero_ps();
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 up = _mm256_and_ps(_mm256_cmp_ps(a.r, zero, _CMP_GT_OQ), one);
  const __m256 down = _mm256_and_ps(_mm256_cmp_ps(a.r, zero, _CMP_LT_OQ), one);
  return Floats8(_mm256_or_ps(_mm256_sub_ps(up, down), _mm256_cmp_ps(a.r, zero, _CMP_UNORD_Q)));
}
SW_SHARED_INLINE Floats8 exact_product(Floats8 a, Floats8 b) {
  __m256 product = _mm256_mul_ps(a.r, b.r);
  asm("" : "+x"(product));
  return Floats8(product);
}

struct Avx2Lanes {
  using F = Floats8;
  static constexpr int kWidth = 8;

  static SW_SHARED_INLINE __m128i load_bits(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  static SW_SHARED_INLINE F load(const float* from) { return F(_mm256_loadu_ps(from)); }
  static SW_SHARED_INLINE F load(const Half* from) { return F(_mm256_cvtph_ps(load_bits(from))); }
  static SW_SHARED_INLINE F load(const BFloat16* from) {
    return F(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bits(from)), 16)));
  }
  static SW_SHARED_INLINE void store(F value, float* to) { _mm256_storeu_ps(to, value.r); }
  static SW_SHARED_INLINE void store(F value, Half* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(value.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static SW_SHARED_INLINE void store(F value, BFloat16* to) {
    const __m256i bits = _mm256_castps_si256(value.r);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value.r, value.r, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
  }

  struct SquareSum {
    __m256d lanes[4];
    SW_SHARED_INLINE SquareSum() {
      for (__m256d& lane : lanes) {
        lane = _mm256_setzero_pd();
      }
    }
    template <typename T>
    SW_SHARED_INLINE void add(const T* from) {
      for (int half = 0; half < 2; ++half) {
        const __m256 value = load(from + 8 * half).r;
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
        lanes[2 * half] = _mm256_fmadd_pd(low, low, lanes[2 * half]);
        lanes[2 * half + 1] = _mm256_fmadd_pd(high, high, lanes[2 * half + 1]);
      }
    }
    SW_SHARED_INLINE void store(double* out) const {
      for (int quarter = 0; quarter < 4; ++quarter) {
        _mm256_storeu_pd(out + 4 * quarter, lanes[quarter]);
      }
    }
  };
};

}  // namespace
}  // namespace shardwise::kernels::cpu

#include "shardwise/kernels/cpu/loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace shardwise::kernels::cpu {
namespace {
constexpr LoopsTable kLoops = make_loops<Avx2Lanes>();
}  // namespace

const LoopsTable& avx2_loops() { return kLoops; }

}  // namespace shardwise::kernels::cpu

#else

namespace shardwise::kernels::cpu {
const LoopsTable& avx2_loops() { return scalar_loops(); }
}  // namespace shardwise::kernels::cpu

#endif
