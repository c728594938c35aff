module {
  func.func @main(%arg0: tensor<4x32x128xf32>) -> tensor<4x32x128xf32> {
    %0 = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %1 = "tosa.const"() <{values = dense<7.812500e-03> : tensor<1x1x1xf32>}> : () -> tensor<1x1x1xf32>
    %2 = "tosa.const"() <{values = dense_resource<torch_tensor_128_torch.float32> : tensor<1x1x128xf32>}> : () -> tensor<1x1x128xf32>
    %3 = tosa.mul %arg0, %arg0, %0 : (tensor<4x32x128xf32>, tensor<4x32x128xf32>, tensor<1xi8>) -> tensor<4x32x128xf32>
    %4 = tosa.reduce_sum %3 {axis = 2 : i32} : (tensor<4x32x128xf32>) -> tensor<4x32x1xf32>
    %5 = tosa.mul %4, %1, %0 : (tensor<4x32x1xf32>, tensor<1x1x1xf32>, tensor<1xi8>) -> tensor<4x32x1xf32>
    %6 = tosa.rsqrt %5 : (tensor<4x32x1xf32>) -> tensor<4x32x1xf32>
    %7 = tosa.mul %arg0, %6, %0 : (tensor<4x32x128xf32>, tensor<4x32x1xf32>, tensor<1xi8>) -> tensor<4x32x128xf32>
    %8 = tosa.mul %7, %2, %0 : (tensor<4x32x128xf32>, tensor<1x1x128xf32>, tensor<1xi8>) -> tensor<4x32x128xf32>
    return %8 : tensor<4x32x128xf32>
  }
}
