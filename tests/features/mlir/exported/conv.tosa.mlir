module {
  func.func @main(%arg0: tensor<1x3x32x32xf32>) -> tensor<1x16x32x32xf32> {
    %0 = "tosa.const"() <{values = dense_resource<torch_tensor_16_torch.float32> : tensor<16xf32>}> : () -> tensor<16xf32>
    %1 = "tosa.const"() <{values = dense<0.000000e+00> : tensor<1xf32>}> : () -> tensor<1xf32>
    %2 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<16x3x3x3xf32>}> : () -> tensor<16x3x3x3xf32>
    %3 = tosa.transpose %arg0 {perms = array<i32: 0, 2, 3, 1>} : (tensor<1x3x32x32xf32>) -> tensor<1x32x32x3xf32>
    %4 = tosa.conv2d %3, %2, %0, %1, %1 {acc_type = f32, dilation = array<i64: 1, 1>, pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<1x32x32x3xf32>, tensor<16x3x3x3xf32>, tensor<16xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x32x32x16xf32>
    %5 = tosa.transpose %4 {perms = array<i32: 0, 3, 1, 2>} : (tensor<1x32x32x16xf32>) -> tensor<1x16x32x32xf32>
    %6 = tosa.clamp %5 {max_val = 3.40282347E+38 : f32, min_val = 0.000000e+00 : f32} : (tensor<1x16x32x32xf32>) -> tensor<1x16x32x32xf32>
    return %6 : tensor<1x16x32x32xf32>
  }
}
