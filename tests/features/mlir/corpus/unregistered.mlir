!tile = tensor<16x?x!mine.word>
#where = #mine.place<"gpu", [1, 2], {deep = {a = "}"}}>
module {
  mine.func @nothing()
  func.func @other(%a: !tile, %b: tensor<4x?xf32>) -> tensor<4x?xf32> {
    %0 = "mine.mix"(%a, %b) <{mode = "fast // not a comment"}> ({
    ^bb0(%x: f32):
      "mine.end"(%x) : (f32) -> ()
    }, {
    }) {place = #where} : (!tile, tensor<4x?xf32>) -> tensor<4x?xf32>
    %1:2 = mine.split %0 by 2 {axis = 1} : tensor<4x?xf32> into tensor<4x?xf32>, tensor<4x?xf32>
    // a comment with } and { in it
    return %1#1 : tensor<4x?xf32>
  }
}
