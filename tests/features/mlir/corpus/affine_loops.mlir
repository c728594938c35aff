func.func @matmul(%a: memref<128x64xf32>, %b: memref<64x32xf32>, %c: memref<128x32xf32>, %n: index) {
  affine.for %i = 0 to 128 {
    affine.for %j = 0 to 32 step 4 {
      affine.for %k = 0 to 64 {
        %0 = affine.load %a[%i, %k] : memref<128x64xf32>
        %1 = affine.load %b[%k, %j] : memref<64x32xf32>
        %2 = affine.load %c[%i, %j] : memref<128x32xf32>
        %3 = arith.mulf %0, %1 : f32
        %4 = arith.addf %2, %3 : f32
        affine.store %4, %c[%i, %j] : memref<128x32xf32>
      }
    }
  }
  affine.parallel (%i, %j) = (0, 0) to (128, 32) {
    %0 = affine.load %c[%i, %j] : memref<128x32xf32>
    %1 = math.exp %0 : f32
    affine.store %1, %c[%i, %j] : memref<128x32xf32>
  }
  %z = arith.constant 0.0 : f32
  %sum = affine.for %i = 0 to %n iter_args(%s = %z) -> (f32) {
    %0 = arith.addf %s, %z : f32
    affine.yield %0 : f32
  }
  return
}
