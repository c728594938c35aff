module {
  func.func @main(%arg0: !torch.vtensor<[4,32,128],f32>) -> !torch.vtensor<[4,32,128],f32> {
    %int6 = torch.constant.int 6
    %float1.000000e00 = torch.constant.float 1.000000e+00
    %int128 = torch.constant.int 128
    %false = torch.constant.bool false
    %int7 = torch.constant.int 7
    %none = torch.constant.none
    %0 = torch.vtensor.literal(dense_resource<torch_tensor_128_torch.float32_1> : tensor<128xf32>) : !torch.vtensor<[128],f32>
    %1 = torch.vtensor.literal(dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>) : !torch.vtensor<[128],f32>
    %int1 = torch.constant.int 1
    %float1.000000e-05 = torch.constant.float 1.000000e-05
    %true = torch.constant.bool true
    %int2 = torch.constant.int 2
    %2 = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
    %3 = torch.aten.to.dtype %arg0, %int7, %false, %false, %none : !torch.vtensor<[4,32,128],f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[4,32,128],f64>
    %4 = torch.aten.sum.dim_IntList %3, %2, %true, %none : !torch.vtensor<[4,32,128],f64>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,32,1],f64>
    %5 = torch.aten.div.Scalar %4, %int128 : !torch.vtensor<[4,32,1],f64>, !torch.int -> !torch.vtensor<[4,32,1],f64>
    %6 = torch.aten.sub.Tensor %3, %5, %float1.000000e00 : !torch.vtensor<[4,32,128],f64>, !torch.vtensor<[4,32,1],f64>, !torch.float -> !torch.vtensor<[4,32,128],f64>
    %7 = torch.aten.mul.Tensor %6, %6 : !torch.vtensor<[4,32,128],f64>, !torch.vtensor<[4,32,128],f64> -> !torch.vtensor<[4,32,128],f64>
    %8 = torch.aten.sum.dim_IntList %7, %2, %true, %none : !torch.vtensor<[4,32,128],f64>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,32,1],f64>
    %9 = torch.aten.div.Scalar %8, %int128 : !torch.vtensor<[4,32,1],f64>, !torch.int -> !torch.vtensor<[4,32,1],f64>
    %10 = torch.aten.to.dtype %9, %int6, %false, %false, %none : !torch.vtensor<[4,32,1],f64>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[4,32,1],f32>
    %11 = torch.aten.sum.dim_IntList %arg0, %2, %true, %none : !torch.vtensor<[4,32,128],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,32,1],f32>
    %12 = torch.aten.div.Scalar %11, %int128 : !torch.vtensor<[4,32,1],f32>, !torch.int -> !torch.vtensor<[4,32,1],f32>
    %13 = torch.aten.add.Scalar %10, %float1.000000e-05, %int1 : !torch.vtensor<[4,32,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[4,32,1],f32>
    %14 = torch.aten.rsqrt %13 : !torch.vtensor<[4,32,1],f32> -> !torch.vtensor<[4,32,1],f32>
    %15 = torch.aten.sub.Tensor %arg0, %12, %int1 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[4,32,1],f32>, !torch.int -> !torch.vtensor<[4,32,128],f32>
    %16 = torch.aten.mul.Tensor %15, %14 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[4,32,1],f32> -> !torch.vtensor<[4,32,128],f32>
    %17 = torch.aten.mul.Tensor %16, %1 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[128],f32> -> !torch.vtensor<[4,32,128],f32>
    %18 = torch.aten.add.Tensor %17, %0, %int1 : !torch.vtensor<[4,32,128],f32>, !torch.vtensor<[128],f32>, !torch.int -> !torch.vtensor<[4,32,128],f32>
    return %18 : !torch.vtensor<[4,32,128],f32>
  }
}
