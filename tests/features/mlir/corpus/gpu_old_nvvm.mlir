module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @scale(%m: memref<1024xf32>, %f: f32) kernel {
      %block = gpu.block_id x
      %dim = gpu.block_dim x
      %thread = gpu.thread_id x
      %base = arith.muli %block, %dim : index
      %i = arith.addi %base, %thread : index
      %v = memref.load %m[%i] : memref<1024xf32>
      %s = arith.mulf %v, %f : f32
      nvvm.barrier0
      memref.store %s, %m[%i] : memref<1024xf32>
      gpu.return
    }
  }
  func.func @main(%m: memref<1024xf32>, %f: f32) {
    %c8 = arith.constant 8 : index
    %c128 = arith.constant 128 : index
    %c1 = arith.constant 1 : index
    gpu.launch_func @kernels::@scale blocks in (%c8, %c1, %c1) threads in (%c128, %c1, %c1)
      args(%m : memref<1024xf32>, %f : f32)
    gpu.launch blocks(%bx, %by, %bz) in (%gx = %c8, %gy = %c1, %gz = %c1)
               threads(%tx, %ty, %tz) in (%sx = %c128, %sy = %c1, %sz = %c1) {
      %v = memref.load %m[%tx] : memref<1024xf32>
      memref.store %v, %m[%bx] : memref<1024xf32>
      gpu.terminator
    }
    return
  }
}
