// What the body of a linalg operation computes, in the words of kernelcast's kernel families.
#pragma once

#include "mlir/Dialect/Linalg/IR/Linalg.h"

#include <string>
#include <vector>

namespace kernelcast {

/// The arithmetic in a body: one name per operation that counts ("add", "exp" …), in order; changes of number format and
/// constants do not count. `gathers` is set where the body reads memory or its own loop counters.
struct Body {
  std::vector<std::string> names;
  bool gathers = false;
};

/// The body of an operation; `skip`, where given, is left out (the operation that combines a reduction).
Body bodyOf(mlir::linalg::LinalgOp op, mlir::Operation *skip = nullptr);

/// The name of one arithmetic operation, "" for one that does not count, "other" for one that has no name.
std::string arithmeticName(mlir::Operation *op);

/// The family elementwise's operator nearest to a chain of operations on so many large arrays: its activation, else the
/// dearest of them.
std::string nearestOperator(const std::vector<std::string> &names, unsigned largeArrays);

} // namespace kernelcast
