module @loops attributes {some.flag} {
  memref.global "private" constant @table : memref<4xf32> = dense<[1.0, 2.0, 3.0, 4.0]>
  func.func private @callee(memref<?xf32>, index) -> f32
  func.func @loops(%m: memref<?xf32>, %p: i1) -> (f32, index) attributes {llvm.emit_c_interface} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = memref.dim %m, %c0 : memref<?xf32>
    %zero = arith.constant 0.0 : f32
    %sum = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zero) -> (f32) {
      %v = memref.load %m[%i] : memref<?xf32>
      %s = arith.addf %acc, %v : f32
      scf.yield %s : f32
    }
    scf.parallel (%i) = (%c0) to (%n) step (%c1) {
      memref.store %sum, %m[%i] : memref<?xf32>
      scf.reduce
    }
    %r:2 = scf.if %p -> (f32, index) {
      %called = func.call @callee(%m, %n) : (memref<?xf32>, index) -> f32
      scf.yield %called, %c0 : f32, index
    } else {
      scf.yield %sum, %n : f32, index
    }
    %w = scf.while (%x = %r#0) : (f32) -> f32 {
      %go = arith.cmpf olt, %x, %zero : f32
      scf.condition(%go) %x : f32
    } do {
    ^bb0(%y: f32):
      %z = arith.addf %y, %y : f32
      scf.yield %z : f32
    }
    %view = memref.subview %m[%c0] [4] [1] : memref<?xf32> to memref<4xf32, strided<[1], offset: ?>>
    %alloc = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
    memref.copy %m, %alloc : memref<?xf32> to memref<?xf32>
    return %w, %r#1 : f32, index
  }
}
