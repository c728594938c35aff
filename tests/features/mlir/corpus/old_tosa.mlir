module {
  func.func @old(%x: tensor<1x4x8xf32>, %w: tensor<1x8x2xf32>) -> tensor<1x4x2xf32> {
    %shift = "tosa.const"() {value = dense<0> : tensor<1xi8>} : () -> tensor<1xi8>
    %0 = tosa.matmul %x, %w : (tensor<1x4x8xf32>, tensor<1x8x2xf32>) -> tensor<1x4x2xf32>
    %1 = tosa.mul %0, %0 {shift = 0 : i8} : (tensor<1x4x2xf32>, tensor<1x4x2xf32>) -> tensor<1x4x2xf32>
    return %1 : tensor<1x4x2xf32>
  }
}
