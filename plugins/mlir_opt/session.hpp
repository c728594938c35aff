// What both passes share: the models they ask, and how they tell a user that one cannot be used.
#pragma once

#include "kernelcast_model.hpp"

#include "mlir/IR/Operation.h"

#include <string>

namespace kernelcast {

/// The attribute that says why an operation was left out.
constexpr llvm::StringLiteral kSkipped = "kernelcast.skipped";

/// One run of a pass on one function: where models are (`directory`), the device asked about, and whether a model that
/// cannot be used is an error. Model files are read once per process and shared by threads; every sentence is said once
/// per process, unless it is an error.
class Session {
public:
  Session(mlir::Operation *function, llvm::StringRef pass, std::string directory, std::string device, bool strict);

  /// The model of a kind that knows the device; null where there is none, which has then been said.
  const Model *find(const std::string &kind);

  /// The device's name as the models have it.
  const std::string &device() const { return device_; }

  /// Whether something was wrong.
  bool said() const { return said_; }

  /// Whether something was wrong and the user wants that to be an error.
  bool failed() const { return strict_ && said_; }

private:
  void say(const std::string &sentence);

  mlir::Operation *function_;
  std::string pass_, directory_, asked_, device_;
  bool strict_;
  bool said_ = false;
};

} // namespace kernelcast
