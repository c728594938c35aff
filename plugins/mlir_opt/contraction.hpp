// A linalg contraction as the four sizes of a matrix product, and which loop each size belongs to.
#pragma once

#include "mlir/Dialect/Linalg/IR/Linalg.h"

#include <optional>
#include <string>

namespace kernelcast {

/// The loops of a contraction by what they do, in loop order: `batch` is in all three operands, `m` in the left one and
/// the result, `n` in the right one and the result, `k` in both inputs only. A product of sizes is 1 where a list is
/// empty (a matrix times a vector has no `n`). `a_transposed`: the left operand holds k outside of m; `b_transposed`: the
/// right one holds n outside of k.
struct Contraction {
  llvm::SmallVector<unsigned> batch, m, n, k;
  bool a_transposed = false;
  bool b_transposed = false;
};

/// The contraction an operation is, named or generic; nothing where it is none or a loop is in one operand only.
std::optional<Contraction> contractionOf(mlir::linalg::LinalgOp op);

/// The product of sizes, the largest number there is where it is larger.
int64_t product(llvm::ArrayRef<int64_t> sizes);

/// The product of the sizes of some loops; `ranges` are the static trip counts of all loops.
int64_t product(llvm::ArrayRef<unsigned> loops, llvm::ArrayRef<int64_t> ranges);

/// kernelcast's name of an element type ("fp32", "bf16" …); nothing where it has none.
std::optional<std::string> dtypeOf(mlir::Type type);

/// kernelcast's name of the dtype an operation computes in: that of its first shaped input, of its result where it has no
/// such input.
std::optional<std::string> dtypeOf(mlir::linalg::LinalgOp op);

} // namespace kernelcast
