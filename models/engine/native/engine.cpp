// Forests and networks for the processor at hand, behind a plain C interface that models/engine/runtime.py loads with ctypes.
//
// It is built with GCC or clang; elsewhere the package does without, and onnxruntime serves. No part of it throws or keeps
// anything but models and each thread's scratch memory. Every function may be called from several threads at once.

#if !defined(__GNUC__)
#error "vectors are written in GCC's and clang's extensions"
#endif

#include <cmath>
#include <cstring>

#include "model.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

// Small arrays of vectors stay in registers only where their loops are unrolled early; clang does it by itself.
#if defined(__clang__)
#define KC_UNROLL
#else
#define KC_UNROLL _Pragma("GCC unroll 8")
#endif

#define KC_SPACE plain
#define KC_BYTES 16
#include "arithmetic.hpp"
#undef KC_SPACE
#undef KC_BYTES

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define KC_SPACE avx2
#define KC_BYTES 32
#define KC_AVX2
#include "arithmetic.hpp"
#undef KC_AVX2
#undef KC_SPACE
#undef KC_BYTES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512cd,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512cd,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif
#define KC_SPACE avx512
#define KC_BYTES 64
#define KC_AVX512
#include "arithmetic.hpp"
#undef KC_AVX512
#undef KC_SPACE
#undef KC_BYTES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace kernelcast {

static int best_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

static const Kernels& kernels_of(int level) {
#if defined(__x86_64__)
    if (level == 2) return avx512::kernels;
    if (level == 1) return avx2::kernels;
#endif
    (void)level;
    return plain::kernels;
}

static void look_over(const float* x, int64_t n, int64_t width, Ranges& ranges) {
    ranges.rows = n;
    ranges.known = n > 1;
    if (!ranges.known) return;
    ranges.low.assign(width, INFINITY);
    ranges.high.assign(width, -INFINITY);
    ranges.missing.assign(width, 0);
    float *low = ranges.low.data(), *high = ranges.high.data();
    uint32_t* missing = ranges.missing.data();
    for (int64_t row = 0; row < n; row++, x += width)
        for (int64_t j = 0; j < width; j++) {
            low[j] = x[j] < low[j] ? x[j] : low[j];
            high[j] = x[j] > high[j] ? x[j] : high[j];
            missing[j] += x[j] != x[j];
        }
}

#include "loading.hpp"
#include "program.hpp"

}  // namespace kernelcast

#define KC_EXPORT extern "C" __attribute__((visibility("default")))

// The best instructions this processor has: 0 any, 1 AVX2 and FMA, 2 AVX-512.
KC_EXPORT int kc_best_level() { return kernelcast::best_level(); }

// Changes whenever the meaning of a function does.
KC_EXPORT int kc_version() { return 2; }

// Answers of `count` models for the rows of `x`, (n, width): one after the other in `out`, each (n, targets).
KC_EXPORT int kc_run(const kernelcast::Model* const* models, int count, const float* x, int64_t n, int64_t width, double* out) {
    thread_local kernelcast::Scratch scratch;
    thread_local kernelcast::Ranges ranges;
    for (int i = 0; i < count; i++)
        if (models[i]->width != width) return -1;
    try {
        kernelcast::look_over(x, n, width, ranges);
        for (int i = 0; i < count; i++) {
            const kernelcast::Model& model = *models[i];
            const kernelcast::Kernels& kernels = kernelcast::kernels_of(model.level);
            if (model.forest) kernels.forest(*model.forest, x, n, width, ranges, scratch, out);
            else kernels.network(*model.network, x, n, width, ranges, scratch, out);
            out += n * model.targets;
        }
    } catch (const std::bad_alloc&) {
        return -2;
    }
    return 0;
}

KC_EXPORT void kc_free(kernelcast::Model* model) { delete model; }

template <class Arrays>
static kernelcast::Model* loaded(std::unique_ptr<kernelcast::Model> (*load)(int, const Arrays&), int level, const Arrays* arrays) {
    try {
        return load(level, *arrays).release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

KC_EXPORT kernelcast::Model* kc_forest(int level, const kernelcast::ForestArrays* arrays) {
    return loaded(kernelcast::forest_of, level, arrays);
}

KC_EXPORT kernelcast::Model* kc_network(int level, const kernelcast::NetworkArrays* arrays) {
    return loaded(kernelcast::network_of, level, arrays);
}

// A program of `steps` steps, four numbers each (see Step); null where there is no memory for it.
KC_EXPORT kernelcast::Program* kc_program(int64_t columns, int64_t numbers, const double* constants, int64_t n_constants,
                                          const kernelcast::Step* steps, int64_t n_steps, const int32_t* outputs,
                                          int64_t n_outputs) {
    try {
        return new kernelcast::Program{columns, numbers, {constants, constants + n_constants}, {steps, steps + n_steps},
                                       {outputs, outputs + n_outputs}};
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

KC_EXPORT void kc_free_program(kernelcast::Program* program) { delete program; }

// The outputs of a program for `n` rows, (outputs, n), and of the first `read` of them what graphs read; see calculate_all.
KC_EXPORT int kc_calculate(const kernelcast::Program* program, int64_t n, int64_t given, const double* columns,
                           const int64_t* place, const double* numbers, const int64_t* code, double* out, int64_t read,
                           const int64_t* position, int64_t width, const float* constants, float* x) {
    thread_local kernelcast::Aligned<double> scratch;
    try {
        kernelcast::calculate_all(*program, {n, given, columns, place, numbers, code}, scratch, out, read, position, width,
                                  constants, x);
    } catch (const std::bad_alloc&) {
        return -2;
    }
    return 0;
}
