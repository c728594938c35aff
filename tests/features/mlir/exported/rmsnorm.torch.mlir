module {
  func.func @main(%arg0: !torch.vtensor<[4,32,128],f32>) -> !torch.vtensor<[4,32,128],f32> {
    %int128 = torch.constant.int 128
    %none = torch.constant.none
    %true = torch.constant.bool true
    %0 = torch.vtensor.literal(dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>) : !torch.vtensor<[128],f32>
    %int2 = torch.constant.int 2
    %1 = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
    %2 = torch.aten.mul.Tensor %arg0, %arg0 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[4,32,128],f32> -> !torch.vtensor<[4,32,128],f32>
    %3 = torch.aten.sum.dim_IntList %2, %1, %true, %none : !torch.vtensor<[4,32,128],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,32,1],f32>
    %4 = torch.aten.div.Scalar %3, %int128 : !torch.vtensor<[4,32,1],f32>, !torch.int -> !torch.vtensor<[4,32,1],f32>
    %5 = torch.aten.rsqrt %4 : !torch.vtensor<[4,32,1],f32> -> !torch.vtensor<[4,32,1],f32>
    %6 = torch.aten.mul.Tensor %arg0, %5 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[4,32,1],f32> -> !torch.vtensor<[4,32,128],f32>
    %7 = torch.aten.mul.Tensor %6, %0 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[128],f32> -> !torch.vtensor<[4,32,128],f32>
    return %7 : !torch.vtensor<[4,32,128],f32>
  }
}
