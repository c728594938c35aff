// What is left alone, and why.
func.func @dynamic(%a: tensor<?x65xf32>, %b: tensor<65x33xf32>, %c: tensor<?x33xf32>) -> tensor<?x33xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<?x65xf32>, tensor<65x33xf32>) outs(%c : tensor<?x33xf32>) -> tensor<?x33xf32>
  return %0 : tensor<?x33xf32>
}

func.func @empty(%a: tensor<0x65xf32>, %b: tensor<65x33xf32>, %c: tensor<0x33xf32>) -> tensor<0x33xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<0x65xf32>, tensor<65x33xf32>) outs(%c : tensor<0x33xf32>) -> tensor<0x33xf32>
  return %0 : tensor<0x33xf32>
}

func.func @complex(%a: tensor<4x4xcomplex<f32>>, %b: tensor<4x4xcomplex<f32>>, %c: tensor<4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>> {
  %0 = linalg.matmul ins(%a, %b : tensor<4x4xcomplex<f32>>, tensor<4x4xcomplex<f32>>) outs(%c : tensor<4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>>
  return %0 : tensor<4x4xcomplex<f32>>
}

func.func @not_in_the_model(%a: tensor<8x8xf64>, %b: tensor<8x8xf64>, %c: tensor<8x8xf64>) -> tensor<8x8xf64> {
  %0 = linalg.matmul ins(%a, %b : tensor<8x8xf64>, tensor<8x8xf64>) outs(%c : tensor<8x8xf64>) -> tensor<8x8xf64>
  return %0 : tensor<8x8xf64>
}

func.func @scalar(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
  %0 = linalg.exp ins(%x : tensor<f32>) outs(%y : tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

func.func @two_results(%x: tensor<32x96xf32>, %y: tensor<32xf32>, %z: tensor<32xf32>) -> (tensor<32xf32>, tensor<32xf32>) {
  %0:2 = linalg.reduce ins(%x, %x : tensor<32x96xf32>, tensor<32x96xf32>) outs(%y, %z : tensor<32xf32>, tensor<32xf32>) dimensions = [1]
    (%a: f32, %b: f32, %c: f32, %d: f32) {
      %s = arith.addf %a, %c : f32
      %m = arith.maximumf %b, %d : f32
      linalg.yield %s, %m : f32, f32
    }
  return %0#0, %0#1 : tensor<32xf32>, tensor<32xf32>
}
