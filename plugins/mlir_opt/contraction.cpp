#include "contraction.hpp"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MathExtras.h"

#include <limits>

using namespace mlir;

namespace kernelcast {
namespace {

/// Where a loop's dimension is in an operand, or -1.
int positionIn(AffineMap map, unsigned loop) {
  for (auto [position, result] : llvm::enumerate(map.getResults()))
    if (auto dim = dyn_cast<AffineDimExpr>(result); dim && dim.getPosition() == loop)
      return static_cast<int>(position);
  return -1;
}

/// Whether the innermost of `outer`'s loops lies further out in an operand than the innermost of `inner`'s.
bool liesOutside(AffineMap map, ArrayRef<unsigned> outer, ArrayRef<unsigned> inner) {
  return !outer.empty() && !inner.empty() && positionIn(map, outer.back()) < positionIn(map, inner.back());
}

} // namespace

std::optional<Contraction> contractionOf(linalg::LinalgOp op) {
  if (!linalg::isaContractionOpInterface(op))
    return std::nullopt;
  SmallVector<AffineMap> maps = op.getIndexingMapsArray();
  Contraction found;
  for (unsigned loop = 0; loop < op.getNumLoops(); ++loop) {
    bool left = positionIn(maps[0], loop) >= 0, right = positionIn(maps[1], loop) >= 0;
    bool result = positionIn(maps[2], loop) >= 0;
    if (left && right && result)
      found.batch.push_back(loop);
    else if (left && result)
      found.m.push_back(loop);
    else if (right && result)
      found.n.push_back(loop);
    else if (left && right)
      found.k.push_back(loop);
    else
      return std::nullopt;
  }
  found.a_transposed = liesOutside(maps[0], found.k, found.m);
  found.b_transposed = liesOutside(maps[1], found.n, found.k);
  return found;
}

int64_t product(ArrayRef<int64_t> sizes) {
  int64_t all = 1;
  for (int64_t size : sizes)
    if (llvm::MulOverflow(all, size, all))
      return std::numeric_limits<int64_t>::max();
  return all;
}

int64_t product(ArrayRef<unsigned> loops, ArrayRef<int64_t> ranges) {
  return product(llvm::map_to_vector(loops, [&](unsigned loop) { return ranges[loop]; }));
}

std::optional<std::string> dtypeOf(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  const char *name = llvm::StringSwitch<const char *>(text)
                         .Case("f64", "fp64")
                         .Case("f32", "fp32")
                         .Case("tf32", "tf32")
                         .Case("bf16", "bf16")
                         .Case("f16", "fp16")
                         .Case("f8E4M3FN", "fp8")
                         .Cases("i8", "si8", "int8")
                         .Cases("i32", "si32", "int32")
                         .Cases("i64", "si64", "int64")
                         .Default(nullptr);
  return name ? std::optional<std::string>(name) : std::nullopt;
}

std::optional<std::string> dtypeOf(linalg::LinalgOp op) {
  for (OpOperand *operand : op.getDpsInputOperands())
    if (auto shaped = dyn_cast<ShapedType>(operand->get().getType()))
      return dtypeOf(shaped.getElementType());
  if (op.getNumDpsInits() == 0)
    return std::nullopt;
  return dtypeOf(getElementTypeOrSelf(op.getDpsInitOperand(0)->get().getType()));
}

} // namespace kernelcast
