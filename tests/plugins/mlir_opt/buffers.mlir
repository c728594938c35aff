// The same on memrefs; several operations, loops of known and unknown length around them.
func.func @layer(%a: memref<64x128xf32>, %b: memref<128x256xf32>, %c: memref<64x256xf32>) {
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%c : memref<64x256xf32>)
  linalg.matmul ins(%a, %b : memref<64x128xf32>, memref<128x256xf32>) outs(%c : memref<64x256xf32>)
  linalg.exp ins(%c : memref<64x256xf32>) outs(%c : memref<64x256xf32>)
  return
}

func.func @repeated(%a: memref<16x16xf32>, %b: memref<16x16xf32>, %c: memref<16x16xf32>) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c7 = arith.constant 7 : index
  scf.for %i = %c0 to %c7 step %c2 {
    affine.for %j = 0 to 5 {
      linalg.matmul ins(%a, %b : memref<16x16xf32>, memref<16x16xf32>) outs(%c : memref<16x16xf32>)
    }
  }
  return
}

func.func @sometimes(%a: memref<16x16xf32>, %b: memref<16x16xf32>, %c: memref<16x16xf32>, %n: index, %yes: i1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    linalg.matmul ins(%a, %b : memref<16x16xf32>, memref<16x16xf32>) outs(%c : memref<16x16xf32>)
  }
  scf.if %yes {
    linalg.exp ins(%c : memref<16x16xf32>) outs(%c : memref<16x16xf32>)
  }
  linalg.exp ins(%a : memref<16x16xf32>) outs(%a : memref<16x16xf32>)
  return
}

func.func @nothing(%x: f32) -> f32 {
  %0 = arith.addf %x, %x : f32
  return %0 : f32
}

func.func private @elsewhere(memref<16x16xf32>)
