%0 = "stablehlo.constant"() {value = dense<1.0> : tensor<4x4xf32>} : () -> tensor<4x4xf32>
%1 = stablehlo.add %0, %0 : tensor<4x4xf32>
%2 = "stablehlo.dot"(%1, %0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
