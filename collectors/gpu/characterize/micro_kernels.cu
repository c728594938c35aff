// Micro-kernels that characterise a GPU; compiled on the machine by NVRTC, no header needed.
//
// Latency kernels time a dependent chain inside one thread (of one warp, or one block) with the SM's clock and with the
// GPU's nanosecond timer; throughput kernels are timed from outside. Memory is chased by a fixed stride, as in Jia et al.,
// "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv 1804.06826, and Luo et al., "Benchmarking
// and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499, whose tables these numbers can be held against.
//
// A latency kernel is (u64 *memory, int steps, long long *out) and writes clocks, nanoseconds and something that keeps the
// chain alive to out. A throughput kernel is (const uint4 *memory, unsigned mask, unsigned stride, int steps, unsigned
// *sink): mask is the working set in elements less one, stride is what the compiler must not know.

typedef unsigned long long u64;

__device__ __forceinline__ long long now_ns() {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) :: "memory");
    return t;
}

__device__ __forceinline__ long long now_clocks() {
    long long t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t) :: "memory");
    return t;
}

#define TIMED(UNROLL, STEP, KEEP)                                  \
    long long ns = now_ns(), clocks = now_clocks();                \
    for (int i = 0; i < steps; i += UNROLL) {                      \
        _Pragma("unroll") for (int j = 0; j < UNROLL; j++) { STEP; } \
    }                                                              \
    clocks = now_clocks() - clocks; ns = now_ns() - ns;            \
    if (threadIdx.x == 0) { out[0] = clocks; out[1] = ns; out[2] = (long long)(KEEP); }

/* Loads, each of whose address is what the one before gave. The first pass over a cached set is not timed. */
#define CHASE(NAME, LOAD)                                                    \
    extern "C" __global__ void NAME(u64 *memory, int steps, long long *out) { \
        u64 at = (u64)memory;                                                \
        TIMED(16, asm volatile(LOAD : "+l"(at) :: "memory"), at)             \
    }
CHASE(chase_l1, "ld.global.ca.u64 %0, [%0];")
CHASE(chase_l2, "ld.global.cg.u64 %0, [%0];")

extern "C" __global__ void chase_shared(u64 *memory, int steps, long long *out) {
    __shared__ unsigned links[1024];
    unsigned first = (unsigned)__cvta_generic_to_shared(links);
    for (int i = 0; i < 1024; i++) links[i] = first + 4u * ((i + 32) % 1024);
    __syncthreads();
    unsigned at = first;
    TIMED(16, asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at) :: "memory"), at)
}

extern "C" __global__ void chain_ffma(u64 *memory, int steps, long long *out) {
    float x = (float)memory[0], a = (float)memory[1], b = (float)memory[2];
    TIMED(64, asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b)), x)
}

extern "C" __global__ void chain_barrier(u64 *memory, int steps, long long *out) {
    TIMED(16, asm volatile("bar.sync 0;" ::: "memory"), steps)
}

/* An address per thread, though there is one: additions to one address of a warp would be gathered by the compiler first. */
extern "C" __global__ void chain_atomic_l2(u64 *memory, int steps, long long *out) {
    unsigned x = (unsigned)steps;
    u64 *at = memory + threadIdx.x;
    TIMED(16, asm volatile("atom.global.add.u32 %0, [%1], %0;" : "+r"(x) : "l"(at) : "memory"), x)
}

extern "C" __global__ void chain_atomic_shared(u64 *memory, int steps, long long *out) {
    __shared__ unsigned cells[32];
    cells[threadIdx.x % 32] = (unsigned)memory[0];
    __syncthreads();
    unsigned x = (unsigned)steps, at = (unsigned)__cvta_generic_to_shared(cells + threadIdx.x % 32);
    TIMED(16, asm volatile("atom.shared.add.u32 %0, [%1], %0;" : "+r"(x) : "r"(at) : "memory"), x)
}

/* What a block adds up, so that no load can be left out. */
#define KEPT(SINK, WORD) if ((WORD) == 0x9e3779b9u) SINK[0] = (WORD);

/* Eight loads of 16 bytes in flight per thread, all threads within the working set. */
#define READ(NAME, SETUP, ADDRESS, ADDRESS_KIND, LOAD)                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                               \
    NAME(const uint4 *memory, unsigned mask, unsigned stride, int steps, unsigned *sink) {                          \
        SETUP                                                                                                       \
        unsigned at = (blockIdx.x * 256u + threadIdx.x) & mask, sum = 0;                                            \
        for (int i = 0; i < steps; i += 8) {                                                                        \
            uint4 v[8];                                                                                             \
            _Pragma("unroll") for (int j = 0; j < 8; j++) {                                                         \
                asm volatile(LOAD : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w) : ADDRESS_KIND(ADDRESS)); \
                at = (at + stride) & mask;                                                                          \
            }                                                                                                       \
            _Pragma("unroll") for (int j = 0; j < 8; j++) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;                 \
        }                                                                                                           \
        KEPT(sink, sum)                                                                                             \
    }
READ(read_l1, , memory + at, "l", "ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4];")
READ(read_l2, , memory + at, "l", "ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];")
READ(read_shared,
     __shared__ uint4 near[1024];
     for (int i = threadIdx.x; i < 1024; i += 256) near[i] = memory[i & mask];
     __syncthreads();
     const unsigned first = (unsigned)__cvta_generic_to_shared(near);,
     first + 16u * (at & 1023u), "r", "ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];")

/* Eight independent chains of fused multiply-adds per thread. */
#define CHAINS(NAME, TYPE, KIND, FMA)                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                      \
    NAME(const uint4 *memory, unsigned mask, unsigned stride, int steps, unsigned *sink) {                 \
        const TYPE *seeds = (const TYPE *)memory;                                                          \
        TYPE a = seeds[0], b = seeds[1], x[8];                                                             \
        _Pragma("unroll") for (int j = 0; j < 8; j++) x[j] = seeds[(threadIdx.x + j * stride) & 31u];      \
        for (int i = 0; i < steps; i += 8) {                                                               \
            _Pragma("unroll") for (int k = 0; k < 8; k++) {                                                \
                _Pragma("unroll") for (int j = 0; j < 8; j++) asm volatile(FMA : "+" KIND(x[j]) : KIND(a), KIND(b)); \
            }                                                                                              \
        }                                                                                                  \
        TYPE sum = x[0];                                                                                   \
        _Pragma("unroll") for (int j = 1; j < 8; j++) asm volatile(FMA : "+" KIND(sum) : KIND(x[j]), KIND(b)); \
        KEPT(sink, *(unsigned *)&sum)                                                                      \
    }
CHAINS(fma_fp32, float, "f", "fma.rn.f32 %0, %0, %1, %2;")
CHAINS(fma_fp64, double, "d", "fma.rn.f64 %0, %0, %1, %2;")
CHAINS(fma_fp16, unsigned, "r", "fma.rn.f16x2 %0, %0, %1, %2;")

#if __CUDA_ARCH__ >= 800
CHAINS(fma_bf16, unsigned, "r", "fma.rn.bf16x2 %0, %0, %1, %2;")

extern "C" __global__ void chain_mma_bf16(u64 *memory, int steps, long long *out) {
    const unsigned *words = (const unsigned *)memory + threadIdx.x;
    unsigned a0 = words[0], a1 = words[32], a2 = words[64], a3 = words[96], b0 = words[128], b1 = words[160];
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    TIMED(16, asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                           "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                           : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                           : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)), c0 + c1 + c2 + c3)
}
#endif
