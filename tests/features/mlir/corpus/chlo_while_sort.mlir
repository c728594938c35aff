module @jit_f {
  func.func public @main(%arg0: tensor<32x64xf32>) -> (tensor<32x3xf32> {jax.result_info = "result[0]"}, tensor<32x3xi32>) {
    %0 = chlo.asinh %arg0 : tensor<32x64xf32> -> tensor<32x64xf32>
    %values, %indices = chlo.top_k(%0, k = 3) : tensor<32x64xf32> -> (tensor<32x3xf32>, tensor<32x3xi32>)
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<10> : tensor<i32>
    %1:2 = stablehlo.while(%iterArg = %c, %iterArg_1 = %values) : tensor<i32>, tensor<32x3xf32>
    cond {
      %2 = stablehlo.compare  LT, %iterArg, %c_0,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.add %iterArg, %c_0 : tensor<i32>
      %3 = stablehlo.multiply %iterArg_1, %iterArg_1 : tensor<32x3xf32>
      stablehlo.return %2, %3 : tensor<i32>, tensor<32x3xf32>
    }
    return %1#1, %indices : tensor<32x3xf32>, tensor<32x3xi32>
  }
}
