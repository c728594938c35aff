// One operation of every sort that kernelcast-annotate reads, on tensors.
#map2 = affine_map<(d0, d1) -> (d0, d1)>
#turned = affine_map<(d0, d1) -> (d1, d0)>
#rows = affine_map<(d0, d1) -> (d0)>
#cols = affine_map<(d0, d1) -> (d1)>

func.func @matmul(%a: tensor<17x65xf32>, %b: tensor<65x33xf32>, %c: tensor<17x33xf32>) -> tensor<17x33xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<17x65xf32>, tensor<65x33xf32>) outs(%c : tensor<17x33xf32>) -> tensor<17x33xf32>
  return %0 : tensor<17x33xf32>
}

func.func @batch_matmul(%a: tensor<6x16x64xbf16>, %b: tensor<6x64x48xbf16>, %c: tensor<6x16x48xbf16>) -> tensor<6x16x48xbf16> {
  %0 = linalg.batch_matmul ins(%a, %b : tensor<6x16x64xbf16>, tensor<6x64x48xbf16>) outs(%c : tensor<6x16x48xbf16>) -> tensor<6x16x48xbf16>
  return %0 : tensor<6x16x48xbf16>
}

func.func @matmul_transpose_a(%a: tensor<65x17xf32>, %b: tensor<65x33xf32>, %c: tensor<17x33xf32>) -> tensor<17x33xf32> {
  %0 = linalg.matmul_transpose_a ins(%a, %b : tensor<65x17xf32>, tensor<65x33xf32>) outs(%c : tensor<17x33xf32>) -> tensor<17x33xf32>
  return %0 : tensor<17x33xf32>
}

func.func @matmul_transpose_b(%a: tensor<17x65xf32>, %b: tensor<33x65xf32>, %c: tensor<17x33xf32>) -> tensor<17x33xf32> {
  %0 = linalg.matmul_transpose_b ins(%a, %b : tensor<17x65xf32>, tensor<33x65xf32>) outs(%c : tensor<17x33xf32>) -> tensor<17x33xf32>
  return %0 : tensor<17x33xf32>
}

func.func @matvec(%a: tensor<64x128xf32>, %x: tensor<128xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {
  %0 = linalg.matvec ins(%a, %x : tensor<64x128xf32>, tensor<128xf32>) outs(%y : tensor<64xf32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}

// A contraction over two loops with two rows of results, in generic form.
func.func @generic_contraction(%a: tensor<4x8x5x7xf32>, %b: tensor<5x7x9xf32>, %c: tensor<4x8x9xf32>) -> tensor<4x8x9xf32> {
  %0 = linalg.generic {
    indexing_maps = [affine_map<(b, m, n, k, l) -> (b, m, k, l)>, affine_map<(b, m, n, k, l) -> (k, l, n)>, affine_map<(b, m, n, k, l) -> (b, m, n)>],
    iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]
  } ins(%a, %b : tensor<4x8x5x7xf32>, tensor<5x7x9xf32>) outs(%c : tensor<4x8x9xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %z, %p : f32
    linalg.yield %s : f32
  } -> tensor<4x8x9xf32>
  return %0 : tensor<4x8x9xf32>
}

func.func @conv(%x: tensor<2x30x28x3xf32>, %w: tensor<3x3x3x16xf32>, %y: tensor<2x14x13x16xf32>) -> tensor<2x14x13x16xf32> {
  %0 = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}
    ins(%x, %w : tensor<2x30x28x3xf32>, tensor<3x3x3x16xf32>) outs(%y : tensor<2x14x13x16xf32>) -> tensor<2x14x13x16xf32>
  return %0 : tensor<2x14x13x16xf32>
}

func.func @conv_dilated(%x: tensor<1x3x20x20xf32>, %w: tensor<8x3x3x3xf32>, %y: tensor<1x8x16x16xf32>) -> tensor<1x8x16x16xf32> {
  %0 = linalg.conv_2d_nchw_fchw {dilations = dense<2> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
    ins(%x, %w : tensor<1x3x20x20xf32>, tensor<8x3x3x3xf32>) outs(%y : tensor<1x8x16x16xf32>) -> tensor<1x8x16x16xf32>
  return %0 : tensor<1x8x16x16xf32>
}

func.func @pooling(%x: tensor<1x8x8x4xf32>, %w: tensor<2x2xf32>, %y: tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32> {
  %0 = linalg.pooling_nhwc_max {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}
    ins(%x, %w : tensor<1x8x8x4xf32>, tensor<2x2xf32>) outs(%y : tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
  return %0 : tensor<1x4x4x4xf32>
}

func.func @softmax(%x: tensor<4x12x77xf32>, %y: tensor<4x12x77xf32>) -> tensor<4x12x77xf32> {
  %0 = linalg.softmax dimension(2) ins(%x : tensor<4x12x77xf32>) outs(%y : tensor<4x12x77xf32>) -> tensor<4x12x77xf32>
  return %0 : tensor<4x12x77xf32>
}

func.func @exp(%x: tensor<32x96xf32>, %y: tensor<32x96xf32>) -> tensor<32x96xf32> {
  %0 = linalg.exp ins(%x : tensor<32x96xf32>) outs(%y : tensor<32x96xf32>) -> tensor<32x96xf32>
  return %0 : tensor<32x96xf32>
}

func.func @add(%x: tensor<32x96xf32>, %y: tensor<32x96xf32>, %z: tensor<32x96xf32>) -> tensor<32x96xf32> {
  %0 = linalg.add ins(%x, %y : tensor<32x96xf32>, tensor<32x96xf32>) outs(%z : tensor<32x96xf32>) -> tensor<32x96xf32>
  return %0 : tensor<32x96xf32>
}

func.func @relu(%x: tensor<8x32x96xf32>, %y: tensor<8x32x96xf32>) -> tensor<8x32x96xf32> {
  %zero = arith.constant 0.0 : f32
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j, l) -> (i, j, l)>, affine_map<(i, j, l) -> (i, j, l)>],
                       iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%x : tensor<8x32x96xf32>) outs(%y : tensor<8x32x96xf32>) {
  ^bb0(%in: f32, %out: f32):
    %r = arith.maximumf %in, %zero : f32
    linalg.yield %r : f32
  } -> tensor<8x32x96xf32>
  return %0 : tensor<8x32x96xf32>
}

func.func @silu(%x: tensor<32x96xf32>, %y: tensor<32x96xf32>) -> tensor<32x96xf32> {
  %one = arith.constant 1.0 : f32
  %0 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel"]}
    ins(%x : tensor<32x96xf32>) outs(%y : tensor<32x96xf32>) {
  ^bb0(%in: f32, %out: f32):
    %n = arith.negf %in : f32
    %e = math.exp %n : f32
    %d = arith.addf %e, %one : f32
    %q = arith.divf %one, %d : f32
    %r = arith.mulf %in, %q : f32
    linalg.yield %r : f32
  } -> tensor<32x96xf32>
  return %0 : tensor<32x96xf32>
}

// The bias row is small, so this is an operator on one array.
func.func @bias(%x: tensor<32x96xf32>, %b: tensor<96xf32>, %y: tensor<32x96xf32>) -> tensor<32x96xf32> {
  %0 = linalg.generic {indexing_maps = [#map2, #cols, #map2], iterator_types = ["parallel", "parallel"]}
    ins(%x, %b : tensor<32x96xf32>, tensor<96xf32>) outs(%y : tensor<32x96xf32>) {
  ^bb0(%in: f32, %bias: f32, %out: f32):
    %r = arith.addf %in, %bias : f32
    linalg.yield %r : f32
  } -> tensor<32x96xf32>
  return %0 : tensor<32x96xf32>
}

func.func @transpose(%x: tensor<32x96xf32>, %y: tensor<96x32xf32>) -> tensor<96x32xf32> {
  %0 = linalg.transpose ins(%x : tensor<32x96xf32>) outs(%y : tensor<96x32xf32>) permutation = [1, 0]
  return %0 : tensor<96x32xf32>
}

func.func @copy(%x: tensor<32x96xf32>, %y: tensor<32x96xf32>) -> tensor<32x96xf32> {
  %0 = linalg.copy ins(%x : tensor<32x96xf32>) outs(%y : tensor<32x96xf32>) -> tensor<32x96xf32>
  return %0 : tensor<32x96xf32>
}

func.func @fill(%y: tensor<32x96xf32>) -> tensor<32x96xf32> {
  %zero = arith.constant 0.0 : f32
  %0 = linalg.fill ins(%zero : f32) outs(%y : tensor<32x96xf32>) -> tensor<32x96xf32>
  return %0 : tensor<32x96xf32>
}

func.func @sum(%x: tensor<32x96xf32>, %y: tensor<32xf32>) -> tensor<32xf32> {
  %0 = linalg.reduce { arith.addf } ins(%x : tensor<32x96xf32>) outs(%y : tensor<32xf32>) dimensions = [1]
  return %0 : tensor<32xf32>
}

func.func @max_rows(%x: tensor<32x96xf32>, %y: tensor<96xf32>) -> tensor<96xf32> {
  %0 = linalg.reduce { arith.maximumf } ins(%x : tensor<32x96xf32>) outs(%y : tensor<96xf32>) dimensions = [0]
  return %0 : tensor<96xf32>
}

func.func @sum_of_squares(%x: tensor<32x96xf32>, %y: tensor<32xf32>) -> tensor<32xf32> {
  %0 = linalg.generic {indexing_maps = [#map2, #rows], iterator_types = ["parallel", "reduction"]}
    ins(%x : tensor<32x96xf32>) outs(%y : tensor<32xf32>) {
  ^bb0(%in: f32, %out: f32):
    %s = arith.mulf %in, %in : f32
    %r = arith.addf %out, %s : f32
    linalg.yield %r : f32
  } -> tensor<32xf32>
  return %0 : tensor<32xf32>
}

func.func @gather(%table: tensor<100x8xf32>, %ids: tensor<16xi32>, %y: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, #map2], iterator_types = ["parallel", "parallel"]}
    ins(%ids : tensor<16xi32>) outs(%y : tensor<16x8xf32>) {
  ^bb0(%id: i32, %out: f32):
    %i = arith.index_cast %id : i32 to index
    %j = linalg.index 1 : index
    %v = tensor.extract %table[%i, %j] : tensor<100x8xf32>
    linalg.yield %v : f32
  } -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

func.func @counting(%y: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %0 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel"]} outs(%y : tensor<16x8xf32>) {
  ^bb0(%out: f32):
    %j = linalg.index 1 : index
    %i = arith.index_cast %j : index to i32
    %v = arith.sitofp %i : i32 to f32
    linalg.yield %v : f32
  } -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

func.func @depthwise(%x: tensor<1x8x8x4xf32>, %w: tensor<3x3x4xf32>, %y: tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32> {
  %0 = linalg.depthwise_conv_2d_nhwc_hwc {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
    ins(%x, %w : tensor<1x8x8x4xf32>, tensor<3x3x4xf32>) outs(%y : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  return %0 : tensor<1x6x6x4xf32>
}
