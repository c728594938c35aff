module {
  llvm.func internal @add(%a: i32 {llvm.noundef}, %p: !llvm.ptr) -> i32 {
    %one = llvm.mlir.constant(1 : i32) : i32
    %v = llvm.load %p : !llvm.ptr -> i32
    %s = llvm.add %a, %v : i32
    %c = llvm.icmp "slt" %s, %one : i32
    llvm.cond_br %c, ^bb1(%s : i32), ^bb2
  ^bb1(%x: i32):  // pred: ^bb0
    llvm.return %x : i32
  ^bb2:
    llvm.return %one : i32
  }
  func.func @count(%n: index) -> index {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    cf.br ^head(%c0 : index)
  ^head(%i: index):
    %more = arith.cmpi slt, %i, %n : index
    cf.cond_br %more, ^body, ^exit(%i : index)
  ^body:
    %next = arith.addi %i, %c1 : index
    cf.br ^head(%next : index)
  ^exit(%r: index):
    return %r : index
  }
}
