// The textbook tiled product: a block of TILE x TILE threads computes one tile of c through shared memory.
// a is (m, k), b (k, n), c (m, n), contiguous in rows; beyond the edges tiles are filled with zeros and not stored.

extern "C" __global__ void __launch_bounds__(TILE * TILE)
tiled_matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
             const long long m, const long long n, const long long k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const long long tiles_n = (n + TILE - 1) / TILE;
    const long long row = blockIdx.x / tiles_n * TILE + threadIdx.y;
    const long long col = blockIdx.x % tiles_n * TILE + threadIdx.x;
    float total = 0.0f;
    for (long long first = 0; first < k; first += TILE) {
        const long long a_col = first + threadIdx.x;
        const long long b_row = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < m && a_col < k ? a[row * k + a_col] : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = b_row < k && col < n ? b[b_row * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            total += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < m && col < n) {
        c[row * n + col] = total;
    }
}
