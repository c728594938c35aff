module {
  func.func @main(%arg0: !torch.vtensor<[32,128],f32>) -> !torch.vtensor<[32,128],f32> {
    %0 = torch.vtensor.literal(dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>) : !torch.vtensor<[128],f32>
    %1 = torch.vtensor.literal(dense_resource<torch_tensor_128_256_torch.float32> : tensor<128x256xf32>) : !torch.vtensor<[128,256],f32>
    %str = torch.constant.str "none"
    %2 = torch.vtensor.literal(dense_resource<torch_tensor_256_torch.float32> : tensor<256xf32>) : !torch.vtensor<[256],f32>
    %3 = torch.vtensor.literal(dense_resource<torch_tensor_256_128_torch.float32> : tensor<256x128xf32>) : !torch.vtensor<[256,128],f32>
    %int1 = torch.constant.int 1
    %int0 = torch.constant.int 0
    %4 = torch.prim.ListConstruct %int1, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.aten.permute %3, %4 : !torch.vtensor<[256,128],f32>, !torch.list<int> -> !torch.vtensor<[128,256],f32>
    %6 = torch.aten.mm %arg0, %5 : !torch.vtensor<[32,128],f32>, !torch.vtensor<[128,256],f32> -> !torch.vtensor<[32,256],f32>
    %7 = torch.aten.mul.Scalar %6, %int1 : !torch.vtensor<[32,256],f32>, !torch.int -> !torch.vtensor<[32,256],f32>
    %8 = torch.aten.mul.Scalar %2, %int1 : !torch.vtensor<[256],f32>, !torch.int -> !torch.vtensor<[256],f32>
    %9 = torch.aten.add.Tensor %7, %8, %int1 : !torch.vtensor<[32,256],f32>, !torch.vtensor<[256],f32>, !torch.int -> !torch.vtensor<[32,256],f32>
    %10 = torch.aten.gelu %9, %str : !torch.vtensor<[32,256],f32>, !torch.str -> !torch.vtensor<[32,256],f32>
    %11 = torch.prim.ListConstruct %int1, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %12 = torch.aten.permute %1, %11 : !torch.vtensor<[128,256],f32>, !torch.list<int> -> !torch.vtensor<[256,128],f32>
    %13 = torch.aten.mm %10, %12 : !torch.vtensor<[32,256],f32>, !torch.vtensor<[256,128],f32> -> !torch.vtensor<[32,128],f32>
    %14 = torch.aten.mul.Scalar %13, %int1 : !torch.vtensor<[32,128],f32>, !torch.int -> !torch.vtensor<[32,128],f32>
    %15 = torch.aten.mul.Scalar %0, %int1 : !torch.vtensor<[128],f32>, !torch.int -> !torch.vtensor<[128],f32>
    %16 = torch.aten.add.Tensor %14, %15, %int1 : !torch.vtensor<[32,128],f32>, !torch.vtensor<[128],f32>, !torch.int -> !torch.vtensor<[32,128],f32>
    return %16 : !torch.vtensor<[32,128],f32>
  }
}
