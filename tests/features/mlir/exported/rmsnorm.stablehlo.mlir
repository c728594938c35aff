module {
  func.func @main(%arg0: tensor<4x32x128xf32>) -> tensor<4x32x128xf32> {
    %cst = stablehlo.constant dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_1 = arith.constant dense<128> : tensor<1xi64>
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<4x32x128xf32>
    %1 = stablehlo.reduce(%0 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<4x32x128xf32>, tensor<f32>) -> tensor<4x32xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x32xf32>) -> tensor<4x32x1xf32>
    %3 = stablehlo.convert %cst_1 : (tensor<1xi64>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<4x32x1xf32>
    %6 = stablehlo.divide %2, %5 : tensor<4x32x1xf32>
    %7 = stablehlo.rsqrt %6 : tensor<4x32x1xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<4x32x1xf32>) -> tensor<4x32x128xf32>
    %9 = stablehlo.multiply %arg0, %8 : tensor<4x32x128xf32>
    %10 = stablehlo.broadcast_in_dim %cst, dims = [2] : (tensor<128xf32>) -> tensor<4x32x128xf32>
    %11 = stablehlo.multiply %9, %10 : tensor<4x32x128xf32>
    return %11 : tensor<4x32x128xf32>
  }
}
