func.func @vectors(%m: memref<64x64xf32>, %i: index, %a: vector<4x8xf32>, %b: vector<8x16xf32>, %c: vector<4x16xf32>) -> vector<4x16xf32> {
  %pad = arith.constant 0.0 : f32
  %v = vector.transfer_read %m[%i, %i], %pad {in_bounds = [true, true]} : memref<64x64xf32>, vector<4x16xf32>
  %p = vector.contract {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %a, %b, %c : vector<4x8xf32>, vector<8x16xf32> into vector<4x16xf32>
  %f = vector.fma %p, %v, %c : vector<4x16xf32>
  %row = vector.extract %f[0] : vector<16xf32> from vector<4x16xf32>
  %sum = vector.reduction <add>, %row : vector<16xf32> into f32
  %s = vector.broadcast %sum : f32 to vector<4x16xf32>
  vector.transfer_write %s, %m[%i, %i] : vector<4x16xf32>, memref<64x64xf32>
  return %s : vector<4x16xf32>
}
