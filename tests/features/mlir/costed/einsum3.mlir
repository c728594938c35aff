module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32x64xf32>, %arg1: tensor<64x16xf32>, %arg2: tensor<16x8xf32>) -> (tensor<32x8xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg2, %arg1, contracting_dims = [0] x [1], precision = [DEFAULT, DEFAULT] : (tensor<16x8xf32>, tensor<64x16xf32>) -> tensor<8x64xf32>
    %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<8x64xf32>) -> tensor<32x8xf32>
    return %1 : tensor<32x8xf32>
  }
}
