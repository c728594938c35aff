module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64x64xf32>, %arg1: tensor<32x64xf32>) -> (tensor<64x64xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<32x64xf32>
    %1:3 = stablehlo.optimization_barrier %arg0, %arg1, %0 : tensor<64x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>
    %2 = stablehlo.dot_general %1#1, %1#0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %3 = stablehlo.tanh %2 : tensor<32x64xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<32x64xf32>
    %5 = stablehlo.subtract %4, %3 : tensor<32x64xf32>
    %6 = stablehlo.multiply %1#2, %5 : tensor<32x64xf32>
    %7 = stablehlo.multiply %6, %3 : tensor<32x64xf32>
    %8 = stablehlo.add %6, %7 : tensor<32x64xf32>
    %9 = stablehlo.dot_general %8, %1#1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %10 = stablehlo.transpose %9, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    return %10 : tensor<64x64xf32>
  }
}
