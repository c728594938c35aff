module {
  func.func @main(%arg0: tensor<2x4x64x32xf32>, %arg1: tensor<2x4x64x32xf32>, %arg2: tensor<2x4x64x32xf32>) -> tensor<2x4x64x32xf32> {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_1 = arith.constant dense<1.250000e-01> : tensor<1xf64>
    %0 = stablehlo.transpose %arg2, dims = [0, 1, 3, 2] : (tensor<2x4x64x32xf32>) -> tensor<2x4x32x64xf32>
    %1 = stablehlo.reshape %arg2 : (tensor<2x4x64x32xf32>) -> tensor<8x64x32xf32>
    %2 = stablehlo.reshape %0 : (tensor<2x4x32x64xf32>) -> tensor<8x32x64xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1, 2] : (tensor<8x32x64xf32>) -> tensor<8x32x64xf32>
    %4 = stablehlo.dot_general %1, %3, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x64x32xf32>, tensor<8x32x64xf32>) -> tensor<8x64x64xf32>
    %5 = stablehlo.reshape %4 : (tensor<8x64x64xf32>) -> tensor<2x4x64x64xf32>
    %6 = stablehlo.convert %cst_1 : (tensor<1xf64>) -> tensor<1xf32>
    %7 = stablehlo.reshape %6 : (tensor<1xf32>) -> tensor<f32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<2x4x64x64xf32>
    %9 = stablehlo.multiply %5, %8 : tensor<2x4x64x64xf32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64xf32>
    %11 = stablehlo.reshape %10 : (tensor<2x4x64xf32>) -> tensor<2x4x64x1xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1, 2, 3] : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %13 = stablehlo.subtract %9, %12 : tensor<2x4x64x64xf32>
    %14 = stablehlo.exponential %13 : tensor<2x4x64x64xf32>
    %15 = stablehlo.reduce(%14 init: %cst_0) applies stablehlo.add across dimensions = [3] : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64xf32>
    %16 = stablehlo.reshape %15 : (tensor<2x4x64xf32>) -> tensor<2x4x64x1xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %18 = stablehlo.divide %14, %17 : tensor<2x4x64x64xf32>
    %19 = stablehlo.reshape %18 : (tensor<2x4x64x64xf32>) -> tensor<8x64x64xf32>
    %20 = stablehlo.broadcast_in_dim %1, dims = [0, 1, 2] : (tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
    %21 = stablehlo.dot_general %19, %20, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x64x64xf32>, tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
    %22 = stablehlo.reshape %21 : (tensor<8x64x32xf32>) -> tensor<2x4x64x32xf32>
    return %22 : tensor<2x4x64x32xf32>
  }
}
