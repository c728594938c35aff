func.func @named(%x: tensor<1x18x18x8xf16>, %k: tensor<3x3x8x16xf16>, %a: tensor<4x32x64xf16>, %b: tensor<4x64x32xf16>,
                 %init: tensor<1x16x16x16xf32>, %acc: tensor<4x32x32xf32>) -> (tensor<1x16x16x16xf32>, tensor<32x4x32xf32>, tensor<4x32xf32>) {
  %conv = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
    ins(%x, %k : tensor<1x18x18x8xf16>, tensor<3x3x8x16xf16>) outs(%init : tensor<1x16x16x16xf32>) -> tensor<1x16x16x16xf32>
  %bmm = linalg.batch_matmul ins(%a, %b : tensor<4x32x64xf16>, tensor<4x64x32xf16>) outs(%acc : tensor<4x32x32xf32>) -> tensor<4x32x32xf32>
  %e = tensor.empty() : tensor<32x4x32xf32>
  %t = linalg.transpose ins(%bmm : tensor<4x32x32xf32>) outs(%e : tensor<32x4x32xf32>) permutation = [1, 0, 2]
  %r0 = tensor.empty() : tensor<4x32xf32>
  %r = linalg.reduce ins(%bmm : tensor<4x32x32xf32>) outs(%r0 : tensor<4x32xf32>) dimensions = [2]
    (%in: f32, %out: f32) {
      %s = arith.addf %out, %in : f32
      linalg.yield %s : f32
    }
  return %conv, %t, %r : tensor<1x16x16x16xf32>, tensor<32x4x32xf32>, tensor<4x32xf32>
}
