func.func @main(%x: tensor<64x1024xf32>, %w1: tensor<1024x4096xf32>, %w2: tensor<4096x1024xf32>) -> tensor<64x1024xf32> {
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0]
    : (tensor<64x1024xf32>, tensor<1024x4096xf32>) -> tensor<64x4096xf32>
  %a = stablehlo.tanh %h : tensor<64x4096xf32>
  %y = stablehlo.dot_general %a, %w2, contracting_dims = [1] x [0]
    : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  return %y : tensor<64x1024xf32>
}
