module {
  func.func @main(%arg0: !torch.vtensor<[2,4,64,32],f32>, %arg1: !torch.vtensor<[2,4,64,32],f32>, %arg2: !torch.vtensor<[2,4,64,32],f32>) -> !torch.vtensor<[2,4,64,32],f32> {
    %none = torch.constant.none
    %float1.000000e00 = torch.constant.float 1.000000e+00
    %true = torch.constant.bool true
    %int-1 = torch.constant.int -1
    %float1.250000e-01 = torch.constant.float 1.250000e-01
    %int8 = torch.constant.int 8
    %int32 = torch.constant.int 32
    %int64 = torch.constant.int 64
    %int4 = torch.constant.int 4
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int3 = torch.constant.int 3
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int1, %int3, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.aten.permute %arg2, %0 : !torch.vtensor<[2,4,64,32],f32>, !torch.list<int> -> !torch.vtensor<[2,4,32,64],f32>
    %2 = torch.prim.ListConstruct %int8, %int64, %int32 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.aten.view %arg2, %2 : !torch.vtensor<[2,4,64,32],f32>, !torch.list<int> -> !torch.vtensor<[8,64,32],f32>
    %4 = torch.prim.ListConstruct %int8, %int32, %int64 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.aten.view %1, %4 : !torch.vtensor<[2,4,32,64],f32>, !torch.list<int> -> !torch.vtensor<[8,32,64],f32>
    %6 = torch.aten.bmm %3, %5 : !torch.vtensor<[8,64,32],f32>, !torch.vtensor<[8,32,64],f32> -> !torch.vtensor<[8,64,64],f32>
    %7 = torch.prim.ListConstruct %int2, %int4, %int64, %int64 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %8 = torch.aten.view %6, %7 : !torch.vtensor<[8,64,64],f32>, !torch.list<int> -> !torch.vtensor<[2,4,64,64],f32>
    %9 = torch.aten.mul.Scalar %8, %float1.250000e-01 : !torch.vtensor<[2,4,64,64],f32>, !torch.float -> !torch.vtensor<[2,4,64,64],f32>
    %values, %indices = torch.aten.max.dim %9, %int-1, %true : !torch.vtensor<[2,4,64,64],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,4,64,1],f32>, !torch.vtensor<[2,4,64,1],si64>
    %10 = torch.aten.sub.Tensor %9, %values, %float1.000000e00 : !torch.vtensor<[2,4,64,64],f32>, !torch.vtensor<[2,4,64,1],f32>, !torch.float -> !torch.vtensor<[2,4,64,64],f32>
    %11 = torch.aten.exp %10 : !torch.vtensor<[2,4,64,64],f32> -> !torch.vtensor<[2,4,64,64],f32>
    %12 = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
    %13 = torch.aten.sum.dim_IntList %11, %12, %true, %none : !torch.vtensor<[2,4,64,64],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[2,4,64,1],f32>
    %14 = torch.aten.div.Tensor %11, %13 : !torch.vtensor<[2,4,64,64],f32>, !torch.vtensor<[2,4,64,1],f32> -> !torch.vtensor<[2,4,64,64],f32>
    %15 = torch.prim.ListConstruct %int8, %int64, %int64 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %16 = torch.aten.view %14, %15 : !torch.vtensor<[2,4,64,64],f32>, !torch.list<int> -> !torch.vtensor<[8,64,64],f32>
    %17 = torch.prim.ListConstruct %int8, %int64, %int32 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %18 = torch.aten.view %arg2, %17 : !torch.vtensor<[2,4,64,32],f32>, !torch.list<int> -> !torch.vtensor<[8,64,32],f32>
    %19 = torch.aten.bmm %16, %18 : !torch.vtensor<[8,64,64],f32>, !torch.vtensor<[8,64,32],f32> -> !torch.vtensor<[8,64,32],f32>
    %20 = torch.prim.ListConstruct %int2, %int4, %int64, %int32 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %21 = torch.aten.view %19, %20 : !torch.vtensor<[8,64,32],f32>, !torch.list<int> -> !torch.vtensor<[2,4,64,32],f32>
    return %21 : !torch.vtensor<[2,4,64,32],f32>
  }
}
