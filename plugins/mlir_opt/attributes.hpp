// Attributes that both passes write.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace kernelcast {

/// Why an operation was left out.
constexpr llvm::StringLiteral kSkipped = "kernelcast.skipped";

} // namespace kernelcast
