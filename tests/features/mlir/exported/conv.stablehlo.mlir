module {
  func.func @main(%arg0: tensor<1x3x32x32xf32>) -> tensor<1x16x32x32xf32> {
    %cst = stablehlo.constant dense_resource<torch_tensor_16_3_3_3_torch.float32> : tensor<16x3x3x3xf32>
    %cst_0 = stablehlo.constant dense_resource<torch_tensor_16_torch.float32> : tensor<16xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<1x16x32x32xf32>
    %0 = stablehlo.convolution(%arg0, %cst) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x3x32x32xf32>, tensor<16x3x3x3xf32>) -> tensor<1x16x32x32xf32>
    %1 = stablehlo.reshape %cst_0 : (tensor<16xf32>) -> tensor<16x1x1xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [1, 2, 3] : (tensor<16x1x1xf32>) -> tensor<1x16x32x32xf32>
    %3 = stablehlo.add %0, %2 : tensor<1x16x32x32xf32>
    %4 = stablehlo.maximum %3, %cst_1 : tensor<1x16x32x32xf32>
    return %4 : tensor<1x16x32x32xf32>
  }
}
