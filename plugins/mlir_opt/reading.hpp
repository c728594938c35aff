// Which kernel of kernelcast's an operation of the linalg dialect is.
#pragma once

#include "mlir/IR/Operation.h"

#include <map>
#include <optional>
#include <string>

namespace kernelcast {

/// A kernel: its family ("gemm", "conv2d" …), dtype, and the sizes of the tuning kind op-FAMILY but for `threads`, which is
/// not the operation's. `variant` is a name, its code is in `sizes` where the family has variants. `stand_in` says how
/// the operation differs from the kernel that stands in for it, "" where it does not.
struct Kernel {
  std::string family;
  std::string dtype;
  std::string variant;
  std::map<std::string, int64_t> sizes;
  std::string stand_in;

  /// "gemm batch=1 m=17 n=33 k=65 fp32", with the variant after the family where it has one.
  std::string title() const;
};

/// What an operation was read as: a kernel, or why it is none. Both empty for an operation that is not linalg's or that
/// does nothing of its own.
struct Reading {
  std::optional<Kernel> kernel;
  std::string why;
};

Reading read(mlir::Operation *op);

} // namespace kernelcast
