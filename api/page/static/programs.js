// Programs to start from.

const BLOCK = `func.func @main(%x: tensor<256x1024xf32>, %w1: tensor<1024x4096xf32>, %w2: tensor<4096x1024xf32>) -> tensor<256x1024xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0]
    : (tensor<256x1024xf32>, tensor<1024x4096xf32>) -> tensor<256x4096xf32>
  %a = stablehlo.tanh %h : tensor<256x4096xf32>
  %y = stablehlo.dot_general %a, %w2, contracting_dims = [1] x [0]
    : (tensor<256x4096xf32>, tensor<4096x1024xf32>) -> tensor<256x1024xf32>
  %r = stablehlo.add %x, %y : tensor<256x1024xf32>
  %e = stablehlo.exponential %r : tensor<256x1024xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<256x1024xf32>, tensor<f32>) -> tensor<256xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<256xf32>) -> tensor<256x1024xf32>
  %p = stablehlo.divide %e, %b : tensor<256x1024xf32>
  return %p : tensor<256x1024xf32>
}
`;

const DYNAMIC = `func.func @main(%x: tensor<?x1024xf32>, %w: tensor<1024x4096xf32>) -> tensor<?x4096xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x1024xf32>, tensor<1024x4096xf32>) -> tensor<?x4096xf32>
  return %y : tensor<?x4096xf32>
}
`;

/** What is offered: words of the button, text of the program. */
export const EXAMPLES = [
  { words: "Example", text: BLOCK },
  { words: "With an open size", text: DYNAMIC },
];
