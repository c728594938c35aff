// The arithmetic, once for each kind of processor: engine.cpp includes this file with KC_SPACE (a namespace) and KC_BYTES (of a
// vector) defined, and KC_AVX512 or KC_AVX2 where it may use them. No include guard: it is meant to be read more than once.
//
// Floating-point contraction is off: what is fused is written as `fma`, so that one row alone and a row among others go through
// the same roundings.

namespace kernelcast {
namespace KC_SPACE {

constexpr int kLanes = KC_BYTES / 4;
typedef float Floats __attribute__((vector_size(KC_BYTES)));
typedef float Loose __attribute__((vector_size(KC_BYTES), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(KC_BYTES)));
typedef uint32_t Words __attribute__((vector_size(KC_BYTES)));

#if defined(KC_AVX512)
constexpr int kVectors = 5, kTile = 5;
#else
constexpr int kVectors = 2, kTile = 6;
#endif
constexpr int kPanel = kVectors * kLanes;

static inline Floats load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
static inline void store(float* p, Floats v) { *reinterpret_cast<Loose*>(p) = v; }
static inline Floats all(float v) { return v - Floats{}; }

static inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(KC_AVX512)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(KC_AVX2)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline Floats relu(Floats v) { return v > 0.0f ? v : Floats{}; }

#include "forest.hpp"
#include "network.hpp"

static const Kernels kernels = {kPanel, run_forest, run_network};

}  // namespace KC_SPACE
}  // namespace kernelcast
