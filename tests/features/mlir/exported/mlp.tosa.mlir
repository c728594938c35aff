module {
  func.func @main(%arg0: tensor<32x128xf32>) -> tensor<32x128xf32> {
    %0 = "tosa.const"() <{values = dense<0.000000e+00> : tensor<1xf32>}> : () -> tensor<1xf32>
    %1 = tosa.const_shape  {values = dense<[1, 32, 128]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %2 = tosa.const_shape  {values = dense<[32, 256]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %3 = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %4 = tosa.const_shape  {values = dense<[1, 32, 256]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %5 = tosa.const_shape  {values = dense<[32, 128]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %6 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<1x128x256xf32>}> : () -> tensor<1x128x256xf32>
    %7 = "tosa.const"() <{values = dense_resource<torch_tensor_256_torch.float32> : tensor<1x256xf32>}> : () -> tensor<1x256xf32>
    %8 = "tosa.const"() <{values = dense<1.000000e+00> : tensor<1x1xf32>}> : () -> tensor<1x1xf32>
    %9 = "tosa.const"() <{values = dense<5.000000e-01> : tensor<1x1xf32>}> : () -> tensor<1x1xf32>
    %10 = "tosa.const"() <{values = dense<0.707106769> : tensor<1x1xf32>}> : () -> tensor<1x1xf32>
    %11 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<1x256x128xf32>}> : () -> tensor<1x256x128xf32>
    %12 = "tosa.const"() <{values = dense_resource<torch_tensor_128_torch.float32> : tensor<1x128xf32>}> : () -> tensor<1x128xf32>
    %13 = tosa.reshape %arg0, %1 : (tensor<32x128xf32>, !tosa.shape<3>) -> tensor<1x32x128xf32>
    %14 = tosa.matmul %13, %6, %0, %0 : (tensor<1x32x128xf32>, tensor<1x128x256xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x32x256xf32>
    %15 = tosa.reshape %14, %2 : (tensor<1x32x256xf32>, !tosa.shape<2>) -> tensor<32x256xf32>
    %16 = tosa.add %15, %7 : (tensor<32x256xf32>, tensor<1x256xf32>) -> tensor<32x256xf32>
    %17 = tosa.mul %16, %10, %3 : (tensor<32x256xf32>, tensor<1x1xf32>, tensor<1xi8>) -> tensor<32x256xf32>
    %18 = tosa.erf %17 : (tensor<32x256xf32>) -> tensor<32x256xf32>
    %19 = tosa.add %18, %8 : (tensor<32x256xf32>, tensor<1x1xf32>) -> tensor<32x256xf32>
    %20 = tosa.mul %9, %19, %3 : (tensor<1x1xf32>, tensor<32x256xf32>, tensor<1xi8>) -> tensor<32x256xf32>
    %21 = tosa.mul %16, %20, %3 : (tensor<32x256xf32>, tensor<32x256xf32>, tensor<1xi8>) -> tensor<32x256xf32>
    %22 = tosa.reshape %21, %4 : (tensor<32x256xf32>, !tosa.shape<3>) -> tensor<1x32x256xf32>
    %23 = tosa.matmul %22, %11, %0, %0 : (tensor<1x32x256xf32>, tensor<1x256x128xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x32x128xf32>
    %24 = tosa.reshape %23, %5 : (tensor<1x32x128xf32>, !tosa.shape<2>) -> tensor<32x128xf32>
    %25 = tosa.add %24, %12 : (tensor<32x128xf32>, tensor<1x128xf32>) -> tensor<32x128xf32>
    return %25 : tensor<32x128xf32>
  }
}
