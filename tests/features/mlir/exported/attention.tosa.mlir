module {
  func.func @main(%arg0: tensor<2x4x64x32xf32>, %arg1: tensor<2x4x64x32xf32>, %arg2: tensor<2x4x64x32xf32>) -> tensor<2x4x64x32xf32> {
    %0 = tosa.const_shape  {values = dense<[8, 64, 32]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %1 = tosa.const_shape  {values = dense<[8, 32, 64]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %2 = "tosa.const"() <{values = dense<0.000000e+00> : tensor<1xf32>}> : () -> tensor<1xf32>
    %3 = tosa.const_shape  {values = dense<[2, 4, 64, 64]> : tensor<4xindex>} : () -> !tosa.shape<4>
    %4 = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %5 = tosa.const_shape  {values = dense<[8, 64, 64]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %6 = tosa.const_shape  {values = dense<[2, 4, 64, 32]> : tensor<4xindex>} : () -> !tosa.shape<4>
    %7 = "tosa.const"() <{values = dense<1.250000e-01> : tensor<1x1x1x1xf32>}> : () -> tensor<1x1x1x1xf32>
    %8 = tosa.transpose %arg2 {perms = array<i32: 0, 1, 3, 2>} : (tensor<2x4x64x32xf32>) -> tensor<2x4x32x64xf32>
    %9 = tosa.reshape %arg2, %0 : (tensor<2x4x64x32xf32>, !tosa.shape<3>) -> tensor<8x64x32xf32>
    %10 = tosa.reshape %8, %1 : (tensor<2x4x32x64xf32>, !tosa.shape<3>) -> tensor<8x32x64xf32>
    %11 = tosa.matmul %9, %10, %2, %2 : (tensor<8x64x32xf32>, tensor<8x32x64xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<8x64x64xf32>
    %12 = tosa.reshape %11, %3 : (tensor<8x64x64xf32>, !tosa.shape<4>) -> tensor<2x4x64x64xf32>
    %13 = tosa.mul %12, %7, %4 : (tensor<2x4x64x64xf32>, tensor<1x1x1x1xf32>, tensor<1xi8>) -> tensor<2x4x64x64xf32>
    %14 = tosa.reduce_max %13 {axis = 3 : i32} : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x1xf32>
    %15 = tosa.sub %13, %14 : (tensor<2x4x64x64xf32>, tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %16 = tosa.exp %15 : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x64xf32>
    %17 = tosa.reduce_sum %16 {axis = 3 : i32} : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x1xf32>
    %18 = tosa.reciprocal %17 : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x1xf32>
    %19 = tosa.mul %16, %18, %4 : (tensor<2x4x64x64xf32>, tensor<2x4x64x1xf32>, tensor<1xi8>) -> tensor<2x4x64x64xf32>
    %20 = tosa.reshape %19, %5 : (tensor<2x4x64x64xf32>, !tosa.shape<3>) -> tensor<8x64x64xf32>
    %21 = tosa.matmul %20, %9, %2, %2 : (tensor<8x64x64xf32>, tensor<8x64x32xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<8x64x32xf32>
    %22 = tosa.reshape %21, %6 : (tensor<8x64x32xf32>, !tosa.shape<4>) -> tensor<2x4x64x32xf32>
    return %22 : tensor<2x4x64x32xf32>
  }
}
