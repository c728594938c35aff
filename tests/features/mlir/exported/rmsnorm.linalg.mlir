#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map2 = affine_map<(d0, d1, d2) -> (d2)>
module {
  func.func @main(%arg0: tensor<4x32x128xf32>) -> tensor<4x32x128xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>
    %cst_1 = arith.constant 1.280000e+02 : f32
    %0 = tensor.empty() : tensor<4x32x128xf32>
    %1 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %arg0 : tensor<4x32x128xf32>, tensor<4x32x128xf32>) outs(%0 : tensor<4x32x128xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %9 = arith.mulf %in, %in_2 : f32
      linalg.yield %9 : f32
    } -> tensor<4x32x128xf32>
    %2 = tensor.empty() : tensor<4x32x1xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<4x32x1xf32>) -> tensor<4x32x1xf32>
    %4 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%1 : tensor<4x32x128xf32>) outs(%3 : tensor<4x32x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = arith.addf %in, %out : f32
      linalg.yield %9 : f32
    } -> tensor<4x32x1xf32>
    %5 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<4x32x1xf32>) outs(%2 : tensor<4x32x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = arith.divf %in, %cst_1 : f32
      linalg.yield %9 : f32
    } -> tensor<4x32x1xf32>
    %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%5 : tensor<4x32x1xf32>) outs(%2 : tensor<4x32x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = math.rsqrt %in : f32
      linalg.yield %9 : f32
    } -> tensor<4x32x1xf32>
    %7 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %6 : tensor<4x32x128xf32>, tensor<4x32x1xf32>) outs(%0 : tensor<4x32x128xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %9 = arith.mulf %in, %in_2 : f32
      linalg.yield %9 : f32
    } -> tensor<4x32x128xf32>
    %8 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7, %cst_0 : tensor<4x32x128xf32>, tensor<128xf32>) outs(%0 : tensor<4x32x128xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %9 = arith.mulf %in, %in_2 : f32
      linalg.yield %9 : f32
    } -> tensor<4x32x128xf32>
    return %8 : tensor<4x32x128xf32>
  }
}
