module @jit_block attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x64x128xf32>, %arg1: tensor<128xf32>, %arg2: tensor<128xf32>, %arg3: tensor<128x384xf32>, %arg4: tensor<128x128xf32>, %arg5: tensor<128xf32>, %arg6: tensor<128xf32>, %arg7: tensor<128x512xf32>, %arg8: tensor<512x128xf32>) -> (tensor<2x64x128xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<2x64x128xf32>, tensor<f32>) -> tensor<2x64xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x1xf32>
    %cst_0 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<2x64x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x64x1xf32>) -> tensor<2x64x128xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<2x64x128xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %6 = call @_var(%arg0, %c) : (tensor<2x64x128xf32>, tensor<i32>) -> tensor<2x64x1xf32>
    %cst_1 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %8 = stablehlo.add %6, %7 : tensor<2x64x1xf32>
    %9 = stablehlo.rsqrt %8 : tensor<2x64x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x64x1xf32>) -> tensor<2x64x128xf32>
    %11 = stablehlo.multiply %5, %10 : tensor<2x64x128xf32>
    %12 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<128xf32>) -> tensor<1x1x128xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2] : (tensor<1x1x128xf32>) -> tensor<2x64x128xf32>
    %14 = stablehlo.multiply %11, %13 : tensor<2x64x128xf32>
    %15 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<128xf32>) -> tensor<1x1x128xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<1x1x128xf32>) -> tensor<2x64x128xf32>
    %17 = stablehlo.add %14, %16 : tensor<2x64x128xf32>
    %18 = stablehlo.dot_general %17, %arg3, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x384xf32>) -> tensor<2x64x384xf32>
    %19 = stablehlo.reshape %18 : (tensor<2x64x384xf32>) -> tensor<2x64x3x4x32xf32>
    %20 = stablehlo.slice %19 [0:2, 0:64, 0:1, 0:4, 0:32] : (tensor<2x64x3x4x32xf32>) -> tensor<2x64x1x4x32xf32>
    %21 = stablehlo.slice %19 [0:2, 0:64, 1:2, 0:4, 0:32] : (tensor<2x64x3x4x32xf32>) -> tensor<2x64x1x4x32xf32>
    %22 = stablehlo.slice %19 [0:2, 0:64, 2:3, 0:4, 0:32] : (tensor<2x64x3x4x32xf32>) -> tensor<2x64x1x4x32xf32>
    %23 = stablehlo.reshape %20 : (tensor<2x64x1x4x32xf32>) -> tensor<2x64x4x32xf32>
    %24 = stablehlo.reshape %21 : (tensor<2x64x1x4x32xf32>) -> tensor<2x64x4x32xf32>
    %25 = stablehlo.reshape %22 : (tensor<2x64x1x4x32xf32>) -> tensor<2x64x4x32xf32>
    %26 = stablehlo.dot_general %23, %24, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x64x4x32xf32>, tensor<2x64x4x32xf32>) -> tensor<2x4x64x64xf32>
    %cst_2 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %27 = stablehlo.sqrt %cst_2 : tensor<f32>
    %28 = stablehlo.convert %27 : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [] : (tensor<f32>) -> tensor<2x4x64x64xf32>
    %30 = stablehlo.divide %26, %29 : tensor<2x4x64x64xf32>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %31 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i1>) -> tensor<64x64xi1>
    %32 = call @tril(%31) : (tensor<64x64xi1>) -> tensor<64x64xi1>
    %cst_4 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %33 = call @_where_0(%32, %30, %cst_4) : (tensor<64x64xi1>, tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64x64xf32>
    %cst_5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %34 = stablehlo.reduce(%33 init: %cst_5) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64xf32>
    %cst_6 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %35 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2x4x64xf32>
    %36 = stablehlo.maximum %35, %34 : tensor<2x4x64xf32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0, 1, 2] : (tensor<2x4x64xf32>) -> tensor<2x4x64x1xf32>
    %38 = stablehlo.broadcast_in_dim %37, dims = [0, 1, 2, 3] : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %39 = stablehlo.subtract %33, %38 : tensor<2x4x64x64xf32>
    %40 = stablehlo.exponential %39 : tensor<2x4x64x64xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %41 = stablehlo.reduce(%40 init: %cst_7) applies stablehlo.add across dimensions = [3] : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64xf32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [0, 1, 2] : (tensor<2x4x64xf32>) -> tensor<2x4x64x1xf32>
    %43 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2, 3] : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %44 = stablehlo.divide %40, %43 : tensor<2x4x64x64xf32>
    %45 = stablehlo.dot_general %25, %44, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x64x4x32xf32>, tensor<2x4x64x64xf32>) -> tensor<2x4x32x64xf32>
    %46 = stablehlo.transpose %45, dims = [0, 3, 1, 2] : (tensor<2x4x32x64xf32>) -> tensor<2x64x4x32xf32>
    %47 = stablehlo.reshape %46 : (tensor<2x64x4x32xf32>) -> tensor<2x64x128xf32>
    %48 = stablehlo.dot_general %47, %arg4, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x128xf32>) -> tensor<2x64x128xf32>
    %49 = stablehlo.add %arg0, %48 : tensor<2x64x128xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %50 = stablehlo.reduce(%49 init: %cst_8) applies stablehlo.add across dimensions = [2] : (tensor<2x64x128xf32>, tensor<f32>) -> tensor<2x64xf32>
    %51 = stablehlo.broadcast_in_dim %50, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x1xf32>
    %cst_9 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %53 = stablehlo.divide %51, %52 : tensor<2x64x1xf32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1, 2] : (tensor<2x64x1xf32>) -> tensor<2x64x128xf32>
    %55 = stablehlo.subtract %49, %54 : tensor<2x64x128xf32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %56 = call @_var(%49, %c_10) : (tensor<2x64x128xf32>, tensor<i32>) -> tensor<2x64x1xf32>
    %cst_11 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %57 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %58 = stablehlo.add %56, %57 : tensor<2x64x1xf32>
    %59 = stablehlo.rsqrt %58 : tensor<2x64x1xf32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2] : (tensor<2x64x1xf32>) -> tensor<2x64x128xf32>
    %61 = stablehlo.multiply %55, %60 : tensor<2x64x128xf32>
    %62 = stablehlo.broadcast_in_dim %arg5, dims = [2] : (tensor<128xf32>) -> tensor<1x1x128xf32>
    %63 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2] : (tensor<1x1x128xf32>) -> tensor<2x64x128xf32>
    %64 = stablehlo.multiply %61, %63 : tensor<2x64x128xf32>
    %65 = stablehlo.broadcast_in_dim %arg6, dims = [2] : (tensor<128xf32>) -> tensor<1x1x128xf32>
    %66 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2] : (tensor<1x1x128xf32>) -> tensor<2x64x128xf32>
    %67 = stablehlo.add %64, %66 : tensor<2x64x128xf32>
    %68 = stablehlo.dot_general %67, %arg7, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x512xf32>) -> tensor<2x64x512xf32>
    %69 = stablehlo.multiply %68, %68 : tensor<2x64x512xf32>
    %70 = stablehlo.multiply %69, %68 : tensor<2x64x512xf32>
    %cst_12 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %71 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<2x64x512xf32>
    %72 = stablehlo.multiply %71, %70 : tensor<2x64x512xf32>
    %73 = stablehlo.add %68, %72 : tensor<2x64x512xf32>
    %cst_13 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %74 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<2x64x512xf32>
    %75 = stablehlo.multiply %74, %73 : tensor<2x64x512xf32>
    %76 = stablehlo.tanh %75 : tensor<2x64x512xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %77 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x64x512xf32>
    %78 = stablehlo.add %77, %76 : tensor<2x64x512xf32>
    %cst_15 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<2x64x512xf32>
    %80 = stablehlo.multiply %79, %78 : tensor<2x64x512xf32>
    %81 = stablehlo.multiply %68, %80 : tensor<2x64x512xf32>
    %82 = stablehlo.dot_general %81, %arg8, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x512xf32>, tensor<512x128xf32>) -> tensor<2x64x128xf32>
    %83 = stablehlo.add %49, %82 : tensor<2x64x128xf32>
    return %83 : tensor<2x64x128xf32>
  }
  func.func private @_var(%arg0: tensor<2x64x128xf32>, %arg1: tensor<i32>) -> tensor<2x64x1xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<2x64x128xf32>, tensor<f32>) -> tensor<2x64xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x1xf32>
    %cst_0 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<2x64x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x64x1xf32>) -> tensor<2x64x128xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<2x64x128xf32>
    %6 = chlo.square %5 : tensor<2x64x128xf32> -> tensor<2x64x128xf32>
    %7 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %cst_1 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %8 = stablehlo.subtract %cst_1, %7 : tensor<f32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.reduce(%6 init: %cst_2) applies stablehlo.add across dimensions = [2] : (tensor<2x64x128xf32>, tensor<f32>) -> tensor<2x64xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x1xf32>
    %11 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %12 = stablehlo.divide %10, %11 : tensor<2x64x1xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.compare GT, %8, %cst_3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = call @_where(%13, %12, %cst_4) : (tensor<i1>, tensor<2x64x1xf32>, tensor<f32>) -> tensor<2x64x1xf32>
    return %14 : tensor<2x64x1xf32>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<2x64x1xf32>, %arg2: tensor<f32>) -> tensor<2x64x1xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<2x64x1xf32>
    return %2 : tensor<2x64x1xf32>
  }
  func.func private @tril(%arg0: tensor<64x64xi1>) -> tensor<64x64xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<64x64xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<64x64xi32>
    %2 = stablehlo.add %0, %1 : tensor<64x64xi32>
    %3 = stablehlo.iota dim = 1 : tensor<64x64xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<64x64xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<64x64xi1>, tensor<64x64xi1>
    return %6 : tensor<64x64xi1>
  }
  func.func private @_where_0(%arg0: tensor<64x64xi1>, %arg1: tensor<2x4x64x64xf32>, %arg2: tensor<f32>) -> tensor<2x4x64x64xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<64x64xi1>) -> tensor<2x4x64x64xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x4x64x64xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<2x4x64x64xi1>, tensor<2x4x64x64xf32>
    return %3 : tensor<2x4x64x64xf32>
  }
}
