module {
  func.func @main(%arg0: !torch.vtensor<[1,3,32,32],f32>) -> !torch.vtensor<[1,16,32,32],f32> {
    %int0 = torch.constant.int 0
    %false = torch.constant.bool false
    %0 = torch.vtensor.literal(dense_resource<torch_tensor_16_3_3_3_torch.float32> : tensor<16x3x3x3xf32>) : !torch.vtensor<[16,3,3,3],f32>
    %1 = torch.vtensor.literal(dense_resource<torch_tensor_16_torch.float32> : tensor<16xf32>) : !torch.vtensor<[16],f32>
    %int1 = torch.constant.int 1
    %2 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.aten.convolution %arg0, %0, %1, %2, %3, %4, %false, %5, %int1 : !torch.vtensor<[1,3,32,32],f32>, !torch.vtensor<[16,3,3,3],f32>, !torch.vtensor<[16],f32>, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,16,32,32],f32>
    %7 = torch.aten.relu %6 : !torch.vtensor<[1,16,32,32],f32> -> !torch.vtensor<[1,16,32,32],f32>
    return %7 : !torch.vtensor<[1,16,32,32],f32>
  }
}
