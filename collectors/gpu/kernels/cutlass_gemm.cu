// One CUTLASS tensor-core product D = A · B of row-major A and D, with its tiles given by macros (cutlass_build.py sets them).
// The device-level template of CUTLASS 2 for compute capability 8.0, which every later card runs too: mma.sync fed by cp.async.
#include <cuda_runtime.h>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>

using Element = KC_ELEMENT;
using Output = KC_OUTPUT;
constexpr int kAlignment = 16 / int(sizeof(Element));

using Gemm = cutlass::gemm::device::Gemm<
    Element, cutlass::layout::RowMajor, Element, KC_LAYOUT_B, Output, cutlass::layout::RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<KC_TILE_M, KC_TILE_N, KC_TILE_K>, cutlass::gemm::GemmShape<KC_WARP_M, KC_WARP_N, KC_TILE_K>,
    cutlass::gemm::GemmShape<16, 8, KC_INSTRUCTION_K>,
    cutlass::epilogue::thread::LinearCombination<Output, 16 / int(sizeof(Output)), float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<KC_GROUP_M>, KC_STAGES, kAlignment, kAlignment, KC_SPLIT>;

static Gemm::Arguments arguments(void const* a, void const* b, void* d, int m, int n, int k, int ldb, int split_k) {
  return {{m, n, k},
          {static_cast<Element const*>(a), k},
          {static_cast<Element const*>(b), ldb},
          {static_cast<Output const*>(d), n},
          {static_cast<Output*>(d), n},
          {1.0f, 0.0f},
          split_k};
}

// Shared memory of a block, in bytes.
extern "C" int shared_b() { return int(sizeof(Gemm::GemmKernel::SharedStorage)); }

// Bytes of device memory that a split product counts its finished parts in.
extern "C" long long workspace_b(int m, int n, int k, int ldb, int split_k) {
  return (long long)Gemm::get_workspace_size(arguments(nullptr, nullptr, nullptr, m, n, k, ldb, split_k));
}

// 0, or cutlass::Status: pointers and row lengths must suit vectors of 16 bytes.
extern "C" int can_run(void const* a, void const* b, void* d, int m, int n, int k, int ldb, int split_k) {
  return int(Gemm::can_implement(arguments(a, b, d, m, n, k, ldb, split_k)));
}

// Enqueues the product on a stream and waits for nothing; 0 or cutlass::Status.
extern "C" int launch(void const* a, void const* b, void* d, int m, int n, int k, int ldb, int split_k, void* workspace,
                      void* stream) {
  Gemm gemm;
  int status = int(gemm(arguments(a, b, d, m, n, k, ldb, split_k), workspace, static_cast<cudaStream_t>(stream)));
  if (status) cudaGetLastError();  // or the next launch would find this error
  return status;
}
