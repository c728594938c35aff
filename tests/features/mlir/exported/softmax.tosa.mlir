module {
  func.func @main(%arg0: tensor<64x512xf32>) -> tensor<64x512xf32> {
    %0 = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %1 = tosa.reduce_max %arg0 {axis = 1 : i32} : (tensor<64x512xf32>) -> tensor<64x1xf32>
    %2 = tosa.sub %arg0, %1 : (tensor<64x512xf32>, tensor<64x1xf32>) -> tensor<64x512xf32>
    %3 = tosa.exp %2 : (tensor<64x512xf32>) -> tensor<64x512xf32>
    %4 = tosa.reduce_sum %3 {axis = 1 : i32} : (tensor<64x512xf32>) -> tensor<64x1xf32>
    %5 = tosa.reciprocal %4 : (tensor<64x1xf32>) -> tensor<64x1xf32>
    %6 = tosa.mul %3, %5, %0 : (tensor<64x512xf32>, tensor<64x1xf32>, tensor<1xi8>) -> tensor<64x512xf32>
    return %6 : tensor<64x512xf32>
  }
}
