// kernelcast-tile: cuts linalg contractions into the tiles a model predicts to be fastest.
#include "contraction.hpp"
#include "session.hpp"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/SCF/Transforms/TileUsingInterface.h"
#include "mlir/Dialect/SCF/Transforms/Transforms.h"
#include "mlir/Pass/Pass.h"

#include <chrono>
#include <set>

using namespace mlir;

namespace kernelcast {
namespace {

constexpr llvm::StringLiteral kPrefix = "kernelcast.", kTiled = "kernelcast.tiled",
                              kTileSizes = "kernelcast.tile_sizes", kTiledLatency = "kernelcast.tiled_latency_s",
                              kUntiledLatency = "kernelcast.untiled_latency_s";
constexpr const char *kKind = "mlir-opt-tiles";

/// Tile sizes of m, n and k; all 0 leaves the operation as it is.
using Tiles = std::array<int64_t, 3>;

/// What is chosen from for a product of these sizes, in a fixed order, the untiled operation first. Equal to the space of the
/// tuning kind mlir-opt-tiles (features/tuning/kinds/mlir_opt_tiles.py), which a test holds it to.
std::vector<Tiles> tileSpace(int64_t m, int64_t n, int64_t k) {
  std::vector<Tiles> space = {{0, 0, 0}};
  std::set<Tiles> seen;
  for (int64_t tileM : {1, 2, 4, 6, 8, 12, 16, 32, 64})
    for (int64_t tileN : {16, 32, 48, 64, 128, 256})
      for (int64_t tileK : {1, 2, 4, 8, 32}) {
        // A tile larger than its size is the whole of it.
        Tiles tiles = {std::min(tileM, m), std::min(tileN, n), std::min(tileK, k)};
        if (seen.insert(tiles).second)
          space.push_back(tiles);
      }
  return space;
}

/// A product whose tiles are chosen: at most one loop each for m, n and k.
struct Product {
  linalg::LinalgOp op;
  Contraction loops;
  SmallVector<int64_t> ranges;

  int64_t size(ArrayRef<unsigned> of) const { return of.empty() ? 1 : ranges[of[0]]; }
};

/// What was chosen, with what the model says of it and of the product as it is.
struct Choice {
  Tiles tiles = {0, 0, 0};
  double tiled_s = 0.0, untiled_s = 0.0;
  size_t asked = 0;
  double took_us = 0.0;
};

/// The tiles predicted to be fastest; nothing, and why, where the model has no answer.
std::optional<Choice> choose(const Product &product, const Model &model, const std::string &device, std::string &why) {
  std::optional<std::string> dtype = dtypeOf(product.op);
  if (!dtype || llvm::any_of(product.ranges, ShapedType::isDynamic) || llvm::is_contained(product.ranges, 0)) {
    why = dtype ? "its sizes are not known at compile time, or it has no elements" : "no model is about its element type";
    return std::nullopt;
  }
  int64_t m = product.size(product.loops.m), n = product.size(product.loops.n), k = product.size(product.loops.k);
  auto began = std::chrono::steady_clock::now();
  std::vector<Tiles> space = tileSpace(m, n, k);
  Knobs knobs;
  for (const Tiles &tiles : space)
    for (auto [knob, size] : llvm::zip_equal(std::array{"tile_m", "tile_n", "tile_k"}, tiles))
      knobs[knob].push_back(size);
  Sizes sizes = {{"batch", kernelcast::product(product.loops.batch, product.ranges)},
                 {"m", m}, {"n", n}, {"k", k},
                 {"a_transposed", product.loops.a_transposed}, {"b_transposed", product.loops.b_transposed}};
  std::vector<double> seconds(space.size());
  if (!model.predict(sizes, device, *dtype, knobs, space.size(), seconds.data(), why))
    return std::nullopt;
  size_t best = std::min_element(seconds.begin(), seconds.end()) - seconds.begin();
  std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
  return Choice{space[best], seconds[best], seconds[0], space.size(), took.count()};
}

/// A tile for every loop, 0 for one that stays whole. Products of a batch are done one after another.
SmallVector<int64_t> perLoop(const Product &product, const Tiles &tiles) {
  SmallVector<int64_t> sizes(product.ranges.size(), 0);
  const std::array<ArrayRef<unsigned>, 3> roles = {product.loops.m, product.loops.n, product.loops.k};
  for (auto [loops, tile] : llvm::zip_equal(roles, tiles))
    if (!loops.empty() && tile != product.ranges[loops[0]])
      sizes[loops[0]] = tile;
  if (llvm::any_of(sizes, [](int64_t size) { return size != 0; }))
    for (unsigned loop : product.loops.batch)
      sizes[loop] = 1;
  return sizes;
}

/// Cuts one operation; `sizes` has a tile for every loop, 0 for one that stays whole.
LogicalResult cut(IRRewriter &rewriter, linalg::LinalgOp op, ArrayRef<int64_t> sizes, bool peel) {
  // Attributes are copied to every piece: a piece is not cut again, and what was said of the whole is not true of it.
  for (NamedAttribute attribute : llvm::to_vector(op->getDiscardableAttrs()))
    if (attribute.getName().strref().starts_with(kPrefix))
      op->removeDiscardableAttr(attribute.getName());
  op->setDiscardableAttr(kTiled, rewriter.getUnitAttr());
  rewriter.setInsertionPoint(op);
  scf::SCFTilingOptions options;
  options.setTileSizes(getAsIndexOpFoldResult(rewriter.getContext(), sizes));
  FailureOr<scf::SCFTilingResult> tiled =
      scf::tileUsingSCF(rewriter, cast<TilingInterface>(op.getOperation()), options);
  if (failed(tiled)) {
    op->removeDiscardableAttr(kTiled);
    return failure();
  }
  rewriter.replaceOp(op, tiled->replacements);
  // Innermost first, so that the remainder of an outer loop is cut off with loops inside that are peeled already.
  for (LoopLikeOpInterface loop : llvm::reverse(tiled->loops)) {
    scf::ForOp remainder;
    if (peel)
      (void)scf::peelForLoopAndSimplifyBounds(rewriter, cast<scf::ForOp>(loop.getOperation()), remainder);
  }
  return success();
}

class TilePass : public PassWrapper<TilePass, OperationPass<func::FuncOp>> {
public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(TilePass)
  TilePass() = default;
  TilePass(const TilePass &other) : PassWrapper(other) {}

  StringRef getArgument() const override { return "kernelcast-tile"; }
  StringRef getDescription() const override {
    return "Tile linalg contractions by the tiles predicted to be fastest (kernelcast)";
  }
  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<affine::AffineDialect, arith::ArithDialect, scf::SCFDialect>();
  }

  Option<std::string> model{*this, "model", llvm::cl::desc("Folder of kernelcast model files (mlir-opt-tiles.kcm)")};
  Option<std::string> device{*this, "device", llvm::cl::desc("Device to choose for, by name or alias")};
  Option<bool> dryRun{*this, "dry-run", llvm::cl::init(false),
                      llvm::cl::desc("Write the choice as kernelcast.tile_sizes and change nothing else")};
  ListOption<int64_t> tileSizes{*this, "tile-sizes",
                                llvm::cl::desc("Tiles of m, n and k for every contraction; no model is asked")};
  Option<bool> peel{*this, "peel", llvm::cl::init(true),
                    llvm::cl::desc("Peel loops whose tile does not divide their size, as what was measured was")};
  Option<bool> remarks{*this, "remarks", llvm::cl::init(false), llvm::cl::desc("Say what is chosen and how long it took")};
  Option<bool> strict{*this, "strict", llvm::cl::init(false),
                      llvm::cl::desc("A model that cannot be used is an error, not a warning")};

  void runOnOperation() override {
    if (!tileSizes.empty() && (tileSizes.size() != 3 || llvm::any_of(tileSizes, [](int64_t size) { return size < 0; }))) {
      getOperation().emitError("kernelcast-tile: tile-sizes has three sizes of at least 0, of m, n and k");
      return signalPassFailure();
    }
    Session session(getOperation(), getArgument(), model, device, strict);
    // Gathered first: cutting makes new operations of the same sort.
    std::vector<Product> products;
    getOperation().walk([&](linalg::LinalgOp op) {
      if (std::optional<Contraction> loops = contractionOf(op); loops && !op->hasAttr(kTiled))
        products.push_back({op, *loops, op.getStaticLoopRanges()});
    });
    for (const Product &product : products)
      if (!visit(product, session))
        break;
    if (session.failed())
      signalPassFailure();
  }

private:
  /// False where there is no model to ask.
  bool visit(const Product &product, Session &session) {
    if (product.loops.m.size() > 1 || product.loops.n.size() > 1 || product.loops.k.size() > 1)
      return skip(product.op, "it has several loops over rows, columns or products");
    if (std::optional<Tiles> given = givenTiles(product.op)) {
      apply(product, *given);
      return true;
    }
    const Model *asked = session.find(kKind);
    if (!asked)
      return false;
    std::string why;
    std::optional<Choice> choice = choose(product, *asked, session.device(), why);
    if (!choice)
      return skip(product.op, why);
    if (remarks)
      product.op->emitRemark("kernelcast-tile: tiles ")
          << choice->tiles[0] << ", " << choice->tiles[1] << ", " << choice->tiles[2] << " of " << choice->asked
          << " choices scored in " << choice->took_us << " us; predicted " << choice->tiled_s << " s instead of "
          << choice->untiled_s << " s untiled";
    if (dryRun)
      note(product.op, *choice);
    else
      apply(product, choice->tiles);
    return true;
  }

  /// Tiles that no model is asked for: those of the option, or what a dry run or a person wrote at the operation.
  std::optional<Tiles> givenTiles(linalg::LinalgOp op) {
    if (!tileSizes.empty())
      return Tiles{tileSizes[0], tileSizes[1], tileSizes[2]};
    auto written = op->getAttrOfType<DenseI64ArrayAttr>(kTileSizes);
    if (dryRun || !written || written.size() != 3 || llvm::any_of(written.asArrayRef(), [](int64_t size) { return size < 0; }))
      return std::nullopt;
    return Tiles{written[0], written[1], written[2]};
  }

  static bool skip(linalg::LinalgOp op, const std::string &why) {
    op->setDiscardableAttr(kSkipped, StringAttr::get(op->getContext(), why));
    return true;
  }

  static void note(linalg::LinalgOp op, const Choice &choice) {
    Builder builder(op->getContext());
    op->removeDiscardableAttr(kSkipped);
    op->setDiscardableAttr(kTileSizes, builder.getDenseI64ArrayAttr(choice.tiles));
    op->setDiscardableAttr(kTiledLatency, builder.getF64FloatAttr(choice.tiled_s));
    op->setDiscardableAttr(kUntiledLatency, builder.getF64FloatAttr(choice.untiled_s));
  }

  void apply(const Product &product, const Tiles &tiles) {
    SmallVector<int64_t> sizes = perLoop(product, tiles);
    if (llvm::all_of(sizes, [](int64_t size) { return size == 0; }))
      return;
    IRRewriter rewriter(&getContext());
    if (failed(cut(rewriter, product.op, sizes, peel)))
      skip(product.op, "mlir-opt cannot tile it");
  }
};

} // namespace

void registerTile() { PassRegistration<TilePass>(); }

} // namespace kernelcast
