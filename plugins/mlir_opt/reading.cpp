#include "reading.hpp"

#include "contraction.hpp"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;

namespace kernelcast {
namespace {

/// Variants of families by their codes, as features/tuning/family_kinds.py lays them down for model files; a test compares
/// answers.
const std::map<std::string, std::vector<std::string>> &variantsByCode() {
  static const std::map<std::string, std::vector<std::string>> variants = {
      {"gemm", {"", "bias", "batched", "nt", "tn", "tt"}},
      {"elementwise", {"relu", "gelu", "silu", "tanh", "exp",  "sigmoid", "sqrt", "log", "neg", "abs",
                       "addu", "mulu", "divu", "powu", "add",  "sub",     "mul",  "div", "pow", "maximum"}},
      {"reduction", {"sum", "mean", "max", "sum_rows", "mean_rows", "max_rows"}},
      {"copy", {"", "transpose"}},
  };
  return variants;
}

/// The arithmetic in a body: one name per operation that counts ("add", "exp" …), in order; changes of number format and
/// constants do not count. `gathers` is set where the body reads memory, `counts` where it reads its own loop counters.
struct Body {
  std::vector<std::string> names;
  bool gathers = false, counts = false;
};

/// The name of one arithmetic operation: the family's operator that costs nearest to it, "" for one that moves or converts and
/// does not count, "other" for one that has no name.
std::string arithmeticName(Operation *op) {
  return llvm::StringSwitch<const char *>(op->getName().getStringRef())
      .Cases("arith.addf", "arith.addi", "add")
      .Cases("arith.subf", "arith.subi", "sub")
      .Cases("arith.mulf", "arith.muli", "math.fma", "mul")
      .Cases("arith.divf", "arith.divsi", "arith.divui", "arith.remf", "arith.remsi", "arith.remui", "div")
      .Cases("arith.maximumf", "arith.maxnumf", "arith.maxsi", "arith.maxui", "maximum")
      .Cases("arith.minimumf", "arith.minnumf", "arith.minsi", "arith.minui", "maximum")
      .Cases("arith.select", "arith.cmpf", "arith.cmpi", "maximum")
      .Case("arith.negf", "neg")
      .Cases("math.absf", "math.absi", "abs")
      .Cases("math.exp", "math.exp2", "math.expm1", "exp")
      .Cases("math.log", "math.log1p", "math.log2", "math.log10", "log")
      .Cases("math.sqrt", "math.rsqrt", "math.cbrt", "sqrt")
      .Cases("math.tanh", "math.sin", "math.cos", "math.tan", "math.atan", "math.atan2", "tanh")
      .Case("math.erf", "gelu")
      .Cases("math.powf", "math.fpowi", "math.ipowi", "pow")
      .Cases("arith.constant", "arith.index_cast", "arith.bitcast", "")
      .Cases("arith.extf", "arith.extsi", "arith.extui", "arith.truncf", "arith.trunci", "")
      .Cases("arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui", "")
      .Default("other");
}

/// The body of an operation; `skip`, where given, is left out (the operation that combines a reduction).
Body bodyOf(linalg::LinalgOp op, Operation *skip = nullptr) {
  Body body;
  for (Operation &inner : op.getBlock()->without_terminator()) {
    if (&inner == skip)
      continue;
    if (isa<linalg::IndexOp>(inner))
      body.counts = true;
    else if (!isMemoryEffectFree(&inner) || inner.getDialect()->getNamespace() == "tensor")
      body.gathers = true;
    else if (std::string name = arithmeticName(&inner); !name.empty())
      body.names.push_back(name);
  }
  return body;
}

/// The family elementwise's operator nearest to a chain of operations on so many large arrays: its activation, else the
/// dearest of them.
std::string nearestOperator(const std::vector<std::string> &names, unsigned largeArrays) {
  auto dearest = [&](std::initializer_list<const char *> order, const char *otherwise) {
    const auto *first = llvm::find_if(order, [&](const char *name) { return llvm::is_contained(names, name); });
    return first == order.end() ? otherwise : *first;
  };
  if (largeArrays >= 2)
    return dearest({"pow", "div", "maximum", "mul", "sub", "add"}, "add");
  if (llvm::is_contained(names, "exp") && llvm::is_contained(names, "add") && llvm::is_contained(names, "div"))
    return llvm::is_contained(names, "mul") ? "silu" : "sigmoid";
  const char *name =
      dearest({"gelu", "tanh", "pow", "log", "exp", "sqrt", "div", "maximum", "mul", "add", "sub", "neg"}, "abs");
  // Operators of two arrays have another name where one of them is a number.
  return llvm::StringSwitch<const char *>(name)
      .Case("pow", "powu")
      .Case("div", "divu")
      .Case("maximum", "relu")
      .Case("mul", "mulu")
      .Cases("add", "sub", "addu")
      .Default(name);
}

Reading kernel(std::string family, std::string dtype, std::string variant, std::map<std::string, int64_t> sizes,
               std::string standIn = "") {
  if (auto variants = variantsByCode().find(family); variants != variantsByCode().end())
    sizes["variant"] = llvm::find(variants->second, variant) - variants->second.begin();
  return {Kernel{std::move(family), std::move(dtype), std::move(variant), std::move(sizes), std::move(standIn)}, ""};
}

Reading skipped(std::string why) { return {std::nullopt, std::move(why)}; }

Reading readContraction(const Contraction &of, ArrayRef<int64_t> ranges, const std::string &dtype) {
  int64_t batch = product(of.batch, ranges);
  std::string layout = std::string(of.a_transposed ? "t" : "n") + (of.b_transposed ? "t" : "n");
  std::string variant = layout != "nn" ? layout : batch > 1 ? "batched" : "";
  return kernel("gemm", dtype, variant,
                {{"batch", batch}, {"m", product(of.m, ranges)}, {"n", product(of.n, ranges)}, {"k", product(of.k, ranges)}});
}

/// The operation that combines a reduction's values: the one that reads what is there so far.
Operation *combiner(linalg::LinalgOp op) {
  BlockArgument soFar = op.getMatchingBlockArgument(op.getDpsInitOperand(0));
  return soFar.hasOneUse() ? *soFar.getUsers().begin() : nullptr;
}

/// A window slid over an input without weights: a reduction of its places, taken as rows of their own.
Reading readPooling(linalg::LinalgOp op, const linalg::ConvolutionDimensions &dims, ArrayRef<int64_t> ranges,
                    const std::string &dtype) {
  Operation *combining = combiner(op);
  if (!combining)
    return skipped("no kernel is known for this reduction");
  return kernel("reduction", dtype, arithmeticName(combining) == "maximum" ? "max" : "sum",
                {{"rows", product(dims.batch, ranges) * product(dims.outputImage, ranges)}, {"cols", product(dims.filterLoop, ranges)}},
                "a sliding window, its places taken as rows of their own");
}

/// Size of the input along the axis that a loop over the result's positions slides on.
int64_t inputSize(linalg::LinalgOp op, unsigned loop) {
  AffineMap map = op.getMatchingIndexingMap(op.getDpsInputOperand(0));
  for (auto [axis, place] : llvm::enumerate(map.getResults()))
    if (place.isFunctionOfDim(loop))
      return op.getShape(op.getDpsInputOperand(0))[axis];
  return 1;
}

/// Sizes of a convolution of two dimensions with a square kernel, one group and without dilation; for another one those of
/// the matrix product it amounts to, one for each group.
Reading readConvolution(linalg::LinalgOp op, ArrayRef<int64_t> ranges, const std::string &dtype) {
  FailureOr<linalg::ConvolutionDimensions> found = linalg::inferConvolutionDims(op);
  if (failed(found))
    return skipped("no kernel is known for this convolution");
  if (found->outputChannel.empty() && found->inputChannel.empty() && found->depth.empty())
    return readPooling(op, *found, ranges, dtype);
  int64_t batch = product(found->batch, ranges), in = product(found->inputChannel, ranges);
  int64_t out = product(found->outputChannel, ranges), groups = product(found->depth, ranges);
  auto is1 = [](int64_t value) { return value == 1; };
  bool square = found->outputImage.size() == 2 && ranges[found->filterLoop[0]] == ranges[found->filterLoop[1]];
  if (groups > 1 || !square || !llvm::all_equal(found->strides) || !llvm::all_of(found->dilations, is1))
    return kernel("gemm", dtype, groups > 1 ? "batched" : "",
                  {{"batch", groups}, {"m", batch * product(found->outputImage, ranges)}, {"n", out},
                   {"k", in * product(found->filterLoop, ranges)}},
                  "the matrix product that this convolution amounts to stands in");
  int64_t side = ranges[found->filterLoop[0]];
  int64_t stride = found->strides.empty() ? 1 : found->strides[0];
  // linalg pads in an operation of its own: the input has its padding.
  return kernel("conv2d", dtype, "",
                {{"batch", batch}, {"in_channels", in}, {"out_channels", out}, {"height", inputSize(op, found->outputImage[0])},
                 {"width", inputSize(op, found->outputImage[1])}, {"kernel", side}, {"stride", stride}, {"padding", 0}});
}

/// Inputs with more than half as many elements as there are steps, and their number; a result that is read counts too.
SmallVector<OpOperand *> largeInputs(linalg::LinalgOp op, int64_t steps) {
  SmallVector<OpOperand *> large;
  for (OpOperand &operand : op->getOpOperands()) {
    auto shaped = dyn_cast<ShapedType>(operand.get().getType());
    bool read = op.isDpsInput(&operand) || op.payloadUsesValueFromOperand(&operand);
    if (shaped && read && product(shaped.getShape()) > steps / 2)
      large.push_back(&operand);
  }
  return large;
}

std::map<std::string, int64_t> rowsAndCols(int64_t elements, ArrayRef<int64_t> shape) {
  int64_t cols = shape.empty() ? 1 : shape.back();
  return {{"rows", elements / cols}, {"cols", cols}};
}

Reading readElementwise(linalg::LinalgOp op, ArrayRef<int64_t> ranges, const std::string &dtype) {
  Body body = bodyOf(op);
  OpOperand *result = op.getDpsInitOperand(0);
  int64_t steps = product(ranges);
  ArrayRef<int64_t> shape = op.getShape(result);
  // The places may be numbers of another format than what is moved.
  if (std::optional<std::string> moved = dtypeOf(getElementTypeOrSelf(result->get().getType())); moved && body.gathers)
    return kernel("copy", *moved, "", rowsAndCols(steps, shape),
                  "a plain copy of as many elements stands in for gather");
  if (body.counts || body.gathers)
    return skipped("what it computes depends on its loop counters");
  SmallVector<OpOperand *> large = largeInputs(op, steps);
  if (!body.names.empty()) {
    std::string nearest = nearestOperator(body.names, large.size());
    std::string plain = body.names.size() == 1 ? body.names[0] : "";
    bool exact = large.size() <= 2 && (nearest == plain || nearest == plain + "u" || (plain == "maximum" && nearest == "relu"));
    std::string note = exact ? ""
                             : std::to_string(body.names.size()) +
                                   (body.names.size() == 1 ? " element operation on " : " element operations on ") +
                                   std::to_string(large.size()) + (large.size() == 1 ? " array; one " : " arrays; one ") + nearest + " stands in";
    return kernel("elementwise", dtype, nearest, rowsAndCols(steps, shape), note);
  }
  if (large.size() != 1 || !op.isDpsInput(large[0]))
    return kernel("copy", dtype, "", rowsAndCols(steps, shape), "a copy stands in for what only writes");
  AffineMap from = op.getMatchingIndexingMap(large[0]), to = op.getMatchingIndexingMap(result);
  bool turned = from.getNumResults() > 1 && to.getNumResults() > 1 &&
                from.getResult(from.getNumResults() - 1) != to.getResult(to.getNumResults() - 1);
  ArrayRef<int64_t> source = op.getShape(large[0]);
  return kernel("copy", dtype, turned ? "transpose" : "", rowsAndCols(steps, turned ? source : shape),
                turned && source.size() > 2 ? "taken as a transpose of two axes" : "");
}

Reading readReduction(linalg::LinalgOp op, ArrayRef<int64_t> ranges, const std::string &dtype) {
  if (op.getNumDpsInits() != 1 || !op.hasOnlyProjectedPermutations())
    return skipped("no kernel is known for a reduction with windows or several results");
  SmallVector<unsigned> kept, reduced;
  for (auto [loop, type] : llvm::enumerate(op.getIteratorTypesArray()))
    (type == utils::IteratorType::parallel ? kept : reduced).push_back(loop);
  int64_t keptSize = product(kept, ranges), reducedSize = product(reduced, ranges);
  SmallVector<OpOperand *> large = largeInputs(op, product(ranges));
  Operation *combining = combiner(op);
  if (large.empty() || !combining)
    return skipped("no kernel is known for this reduction");
  Body rest = bodyOf(op, combining);
  if (rest.gathers || rest.counts)
    return skipped("what it reads depends on its loop counters or its values");
  AffineMap map = op.getMatchingIndexingMap(large[0]);
  auto last = cast<AffineDimExpr>(map.getResult(map.getNumResults() - 1));
  bool inner = llvm::is_contained(reduced, last.getPosition());
  std::string name = arithmeticName(combining) == "maximum" ? "max" : "sum";
  std::string note;
  if (StringRef op = combining->getName().getStringRef(); name == "sum" && op != "arith.addf" && op != "arith.addi")
    note = "a sum stands in for " + op.str();
  else if (!rest.names.empty() || large.size() > 1)
    note = "the " + name + " alone, without what is computed on the way to it";
  return kernel("reduction", dtype, inner ? name : name + "_rows",
                {{"rows", inner ? keptSize : reducedSize}, {"cols", inner ? reducedSize : keptSize}}, note);
}

Reading readSoftmax(linalg::SoftmaxOp op) {
  ShapedType type = op.getInputOperandType();
  if (!type.hasStaticShape())
    return skipped("its sizes are not known at compile time");
  std::optional<std::string> dtype = dtypeOf(type.getElementType());
  if (!dtype || product(type.getShape()) == 0)
    return skipped(dtype ? "it has no elements" : "no kernel is known for its element type");
  int64_t cols = type.getDimSize(op.getDimension());
  bool lastAxis = static_cast<int64_t>(op.getDimension()) == type.getRank() - 1;
  return kernel("softmax", *dtype, "", {{"rows", product(type.getShape()) / cols}, {"cols", cols}},
                lastAxis ? "" : "taken along the last axis");
}

/// Whether an operation makes an array of one number that products and reductions alone read, as the values their sums start
/// from: compilers write that number in the kernel of the sum, and no kernel fills the array.
bool isInitialValue(linalg::LinalgOp op) {
  auto isNumber = [&](OpOperand *input) { return !isa<ShapedType>(input->get().getType()); };
  if (!op.hasPureTensorSemantics() || op->use_empty() || !llvm::all_of(op.getDpsInputOperands(), isNumber) ||
      op.getNumReductionLoops() > 0 || llvm::range_size(op.getBlock()->without_terminator()) > 0)
    return false;
  return llvm::all_of(op->getUses(), [](OpOperand &use) {
    auto user = dyn_cast<linalg::LinalgOp>(use.getOwner());
    return user && user.isDpsInit(&use) && (user.getNumReductionLoops() > 0 || !user.payloadUsesValueFromOperand(&use));
  });
}

} // namespace

std::string Kernel::title() const {
  std::string text = family + (variant.empty() ? "" : " " + variant);
  for (const char *name : {"batch", "in_channels", "out_channels", "height", "width", "kernel", "stride", "padding", "m", "n",
                           "k", "rows", "cols"})
    if (auto found = sizes.find(name); found != sizes.end())
      text += std::string(" ") + name + "=" + std::to_string(found->second);
  return text + " " + dtype;
}

Reading read(Operation *op) {
  if (auto softmax = dyn_cast<linalg::SoftmaxOp>(op))
    return readSoftmax(softmax);
  auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
  if (!linalgOp || linalgOp.getNumDpsInits() == 0)
    return {};
  if (isInitialValue(linalgOp))
    return {};
  SmallVector<int64_t> ranges = linalgOp.getStaticLoopRanges();
  if (linalgOp.hasDynamicShape() || llvm::any_of(ranges, ShapedType::isDynamic))
    return skipped("its sizes are not known at compile time");
  if (llvm::is_contained(ranges, 0))
    return skipped("it has no elements");
  std::optional<std::string> dtype = dtypeOf(linalgOp);
  if (!dtype)
    return skipped("no kernel is known for its element type");
  if (std::optional<Contraction> contraction = contractionOf(linalgOp))
    return readContraction(*contraction, ranges, *dtype);
  // Without windows the interface holds for element operations too.
  if (linalg::isaConvolutionOpInterface(linalgOp) && !linalgOp.hasOnlyProjectedPermutations())
    return readConvolution(linalgOp, ranges, *dtype);
  if (linalgOp.getNumReductionLoops() > 0)
    return readReduction(linalgOp, ranges, *dtype);
  return readElementwise(linalgOp, ranges, *dtype);
}

} // namespace kernelcast
