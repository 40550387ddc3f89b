// Sixteen floats at a time: AVX-512 F, BW, DQ and VL. The bfloat16 instructions of newer processors
// are not used: they flush subnormals.
#include "shardwise/kernels/cpu/loops_table.h"
#include "shardwise/kernels/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <type_traits>

// No header below but loops.h; the reason is there.
#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
    apply_to = function)
#else
// GCC 12's own avx512fintrin.h starts "undefined" registers from themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace shardwise::kernels::cpu {
namespace {

struct Floats16 {
  __m512 r;
  SW_SHARED_INLINE explicit Floats16(__m512 value) : r(value) {}
  SW_SHARED_INLINE explicit Floats16(float value) : r(_mm512_set1_ps(value)) {}
};

SW_SHARED_INLINE Floats16 operator+(Floats16 a, Floats16 b) {
  return Floats16(_mm512_add_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats16 operator-(Floats16 a, Floats16 b) {
  return Floats16(_mm512_sub_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats16 operator*(Floats16 a, Floats16 b) {
  return Floats16(_mm512_mul_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats16 operator/(Floats16 a, Floats16 b) {
  return Floats16(_mm512_div_ps(a.r, b.r));
}
SW_SHARED_INLINE Floats16 fused_multiply_add(Floats16 a, Floats16 b, Floats16 c) {
  return Floats16(_mm512_fmadd_ps(a.r, b.r, c.r));
}
SW_SHARED_INLINE Floats16 square_root(Floats16 a) { return Floats16(_mm512_sqrt_ps(a.r)); }
SW_SHARED_INLINE Floats16 sign_of(Floats16 a) {
  const __m512 zero = _mm512_setzero_ps();
  const __mmask16 up = _mm512_cmp_ps_mask(a.r, zero, _CMP_GT_OQ);
  const __mmask16 down = _mm512_cmp_ps_mask(a.r, zero, _CMP_LT_OQ);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.r, zero, _CMP_UNORD_Q);
  __m512 sign = _mm512_maskz_mov_ps(up, _mm512_set1_ps(1.0F));
  sign = _mm512_mask_mov_ps(sign, down, _mm512_set1_ps(-1.0F));
  return Floats16(_mm512_mask_mov_ps(sign, nan, a.r));
}
SW_SHARED_INLINE Floats16 exact_product(Floats16 a, Floats16 b) {
  __m512 product = _mm512_mul_ps(a.r, b.r);
  asm("" : "+v"(product));
  return Floats16(product);
}

struct Avx512Lanes {
  using F = Floats16;
  static constexpr int kWidth = 16;

  static SW_SHARED_INLINE __m256i load_bits(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static SW_SHARED_INLINE F load(const float* from) { return F(_mm512_loadu_ps(from)); }
  static SW_SHARED_INLINE F load(const Half* from) { return F(_mm512_cvtph_ps(load_bits(from))); }
  static SW_SHARED_INLINE F load(const BFloat16* from) {
    return F(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bits(from)), 16)));
  }
  static SW_SHARED_INLINE void store(F value, float* to) { _mm512_storeu_ps(to, value.r); }
  static SW_SHARED_INLINE void store(F value, Half* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(value.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static SW_SHARED_INLINE void store(F value, BFloat16* to) {
    const __m512i bits = _mm512_castps_si512(value.r);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(value.r, value.r, _CMP_UNORD_Q);
    const __m512i quieted = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(quieted, 16)));
  }

  struct SquareSum {
    __m512d lanes[2];
    SW_SHARED_INLINE SquareSum() {
      for (__m512d& lane : lanes) {
        lane = _mm512_setzero_pd();
      }
    }
    template <typename T>
    SW_SHARED_INLINE void add(const T* from) {
      const __m512 value = load(from).r;
      const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
      const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
      lanes[0] = _mm512_fmadd_pd(low, low, lanes[0]);
      lanes[1] = _mm512_fmadd_pd(high, high, lanes[1]);
    }
    SW_SHARED_INLINE void store(double* out) const {
      _mm512_storeu_pd(out, lanes[0]);
      _mm512_storeu_pd(out + 8, lanes[1]);
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
constexpr LoopsTable kLoops = make_loops<Avx512Lanes>();
}  // namespace

const LoopsTable& avx512_loops() { return kLoops; }

}  // namespace shardwise::kernels::cpu

#else

namespace shardwise::kernels::cpu {
const LoopsTable& avx512_loops() { return scalar_loops(); }
}  // namespace shardwise::kernels::cpu

#endif
