#include "bodies.hpp"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

#include <algorithm>
#include <set>

using namespace mlir;

namespace kernelcast {
namespace {

/// Operations by the family's operator that costs nearest to them; "" moves or converts and does not count.
const llvm::StringMap<const char *> &knownOperations() {
  static const llvm::StringMap<const char *> known = {
      {"arith.addf", "add"},        {"arith.addi", "add"},        {"arith.subf", "sub"},      {"arith.subi", "sub"},
      {"arith.mulf", "mul"},        {"arith.muli", "mul"},        {"math.fma", "mul"},        {"arith.divf", "div"},
      {"arith.divsi", "div"},       {"arith.divui", "div"},       {"arith.remf", "div"},      {"arith.remsi", "div"},
      {"arith.remui", "div"},       {"arith.maximumf", "maximum"}, {"arith.maxnumf", "maximum"},
      {"arith.maxsi", "maximum"},   {"arith.maxui", "maximum"},   {"arith.minimumf", "maximum"},
      {"arith.minnumf", "maximum"}, {"arith.minsi", "maximum"},   {"arith.minui", "maximum"},
      {"arith.select", "maximum"},  {"arith.cmpf", "maximum"},    {"arith.cmpi", "maximum"},  {"arith.negf", "neg"},
      {"math.absf", "abs"},         {"math.absi", "abs"},         {"math.exp", "exp"},        {"math.exp2", "exp"},
      {"math.expm1", "exp"},        {"math.log", "log"},          {"math.log1p", "log"},      {"math.log2", "log"},
      {"math.log10", "log"},        {"math.sqrt", "sqrt"},        {"math.rsqrt", "sqrt"},     {"math.cbrt", "sqrt"},
      {"math.tanh", "tanh"},        {"math.sin", "tanh"},         {"math.cos", "tanh"},       {"math.tan", "tanh"},
      {"math.atan", "tanh"},        {"math.atan2", "tanh"},       {"math.erf", "gelu"},       {"math.powf", "pow"},
      {"math.fpowi", "pow"},        {"math.ipowi", "pow"},        {"arith.constant", ""},     {"arith.extf", ""},
      {"arith.truncf", ""},         {"arith.extsi", ""},          {"arith.extui", ""},        {"arith.trunci", ""},
      {"arith.sitofp", ""},         {"arith.uitofp", ""},         {"arith.fptosi", ""},       {"arith.fptoui", ""},
      {"arith.index_cast", ""},     {"arith.bitcast", ""},
  };
  return known;
}

using Names = std::set<std::string>;

bool has(const Names &present, std::initializer_list<const char *> wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const char *name) { return present.count(name) > 0; });
}

const char *dearest(const Names &present, std::initializer_list<const char *> order, const char *otherwise) {
  for (const char *name : order)
    if (present.count(name))
      return name;
  return otherwise;
}

} // namespace

std::string arithmeticName(Operation *op) {
  auto found = knownOperations().find(op->getName().getStringRef());
  return found == knownOperations().end() ? "other" : found->second;
}

Body bodyOf(linalg::LinalgOp op, Operation *skip) {
  Body body;
  for (Operation &inner : op.getBlock()->without_terminator()) {
    if (&inner == skip)
      continue;
    if (isa<linalg::IndexOp>(inner) || !isMemoryEffectFree(&inner) || inner.getDialect()->getNamespace() == "tensor")
      body.gathers = true;
    else if (std::string name = arithmeticName(&inner); !name.empty())
      body.names.push_back(name);
  }
  return body;
}

std::string nearestOperator(const std::vector<std::string> &names, unsigned largeArrays) {
  Names present(names.begin(), names.end());
  if (largeArrays >= 2)
    return dearest(present, {"pow", "div", "maximum", "mul", "sub", "add"}, "add");
  if (has(present, {"exp", "add", "div"}))
    return present.count("mul") ? "silu" : "sigmoid";
  const char *name =
      dearest(present, {"gelu", "tanh", "pow", "log", "exp", "sqrt", "div", "maximum", "mul", "add", "sub", "neg"}, "abs");
  static const llvm::StringMap<const char *> withNumber = {{"pow", "powu"}, {"div", "divu"}, {"maximum", "relu"},
                                                           {"mul", "mulu"}, {"add", "addu"}, {"sub", "addu"}};
  auto found = withNumber.find(name);
  return found == withNumber.end() ? name : found->second;
}

} // namespace kernelcast
