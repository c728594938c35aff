// kernelcast-annotate: what linalg operations cost on a device, as attributes.
#include "attributes.hpp"
#include "costs.hpp"
#include "passes.hpp"
#include "reading.hpp"
#include "session.hpp"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/Interfaces/LoopLikeInterface.h"
#include "mlir/Pass/Pass.h"

using namespace mlir;

namespace kernelcast {
namespace {

constexpr llvm::StringLiteral kLatency = "kernelcast.latency_s", kEnergy = "kernelcast.energy_j",
                              kLower = "kernelcast.lower_s", kUpper = "kernelcast.upper_s",
                              kBound = "kernelcast.bound", kKernel = "kernelcast.kernel",
                              kStandIn = "kernelcast.stand_in", kRuns = "kernelcast.runs", kTotalLatency = "kernelcast.total_latency_s",
                              kTotalEnergy = "kernelcast.total_energy_j", kCovered = "kernelcast.ops_covered",
                              kLeftOut = "kernelcast.ops_skipped";
constexpr std::array<llvm::StringRef, 13> kAll = {kLatency, kLower, kUpper, kEnergy,       kBound,       kKernel,  kStandIn, kSkipped,
                                                  kRuns,    kTotalLatency, kTotalEnergy, kCovered, kLeftOut};

/// How often an operation runs when its function does: the product of the trip counts of the loops around it; nothing where
/// one is not known, or something else decides whether it runs.
std::optional<int64_t> runsOf(Operation *op) {
  int64_t runs = 1;
  for (Operation *around = op->getParentOp(); around && !isa<func::FuncOp>(around); around = around->getParentOp()) {
    auto loop = dyn_cast<LoopLikeOpInterface>(around);
    if (!loop)
      return std::nullopt;
    auto lower = loop.getLoopLowerBounds(), upper = loop.getLoopUpperBounds(), step = loop.getLoopSteps();
    if (!lower || !upper || !step)
      return std::nullopt;
    for (auto [from, to, by] : llvm::zip_equal(*lower, *upper, *step)) {
      std::optional<int64_t> trips = constantTripCount(from, to, by);
      if (!trips || __builtin_mul_overflow(runs, *trips, &runs))
        return std::nullopt;
    }
  }
  return runs;
}

/// An operation with what was read and predicted of it.
struct Entry {
  Operation *op;
  Reading reading;
  std::optional<Cost> cost;
  int64_t runs = 1;
};

class AnnotatePass : public PassWrapper<AnnotatePass, OperationPass<func::FuncOp>> {
public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(AnnotatePass)
  AnnotatePass() = default;
  AnnotatePass(const AnnotatePass &other) : PassWrapper(other) {}

  StringRef getArgument() const override { return "kernelcast-annotate"; }
  StringRef getDescription() const override {
    return "Annotate linalg operations with their predicted latency, energy and binding limit (kernelcast)";
  }

  Option<std::string> model{*this, "model", llvm::cl::desc("Folder of kernelcast model files (op-FAMILY.kcm)")};
  Option<std::string> device{*this, "device", llvm::cl::desc("Device to predict for, by its name in the models")};
  Option<int64_t> threads{*this, "threads", llvm::cl::init(0), llvm::cl::desc("CPU threads; 0: all cores, or a GPU")};
  Option<bool> strict{*this, "strict", llvm::cl::init(false),
                      llvm::cl::desc("A model that cannot be used is an error, not a warning")};

  void runOnOperation() override {
    Session session(getOperation(), getArgument(), model, device, strict);
    std::vector<Entry> entries;
    getOperation().walk([&](Operation *op) {
      Reading reading = read(op);
      if (reading.kernel || !reading.why.empty())
        entries.push_back(predicted(op, std::move(reading), session));
    });
    if (session.failed())
      return signalPassFailure();
    // Where no model could be used the user has been told, and the code is left as it is.
    auto hasCost = [](const Entry &entry) { return entry.cost.has_value(); };
    if (entries.empty() || (session.said() && llvm::none_of(entries, hasCost)))
      return;
    getOperation().walk([&](Operation *op) { clear(op); });
    for (const Entry &entry : entries)
      write(entry);
    summarise(entries);
  }

private:
  Entry predicted(Operation *op, Reading reading, Session &session) {
    Entry entry{op, std::move(reading), std::nullopt};
    if (!entry.reading.kernel)
      return entry;
    if (std::optional<int64_t> runs = runsOf(op))
      entry.runs = *runs;
    else
      entry.reading.why = "how often it runs is not known at compile time";
    if (const Model *asked = session.find("op-" + entry.reading.kernel->family))
      entry.cost = costOf(*asked, *entry.reading.kernel, device, threads, entry.reading.why);
    else
      entry.reading.why = "there is no model of " + entry.reading.kernel->family + " to ask";
    return entry;
  }

  static void clear(Operation *op) {
    for (StringRef name : kAll)
      op->removeDiscardableAttr(name);
  }

  static void write(const Entry &entry) {
    Builder builder(entry.op->getContext());
    if (entry.cost) {
      entry.op->setDiscardableAttr(kKernel, builder.getStringAttr(entry.reading.kernel->title()));
      entry.op->setDiscardableAttr(kLatency, builder.getF64FloatAttr(entry.cost->latency_s));
      if (entry.cost->lower_s)
        entry.op->setDiscardableAttr(kLower, builder.getF64FloatAttr(*entry.cost->lower_s));
      if (entry.cost->upper_s)
        entry.op->setDiscardableAttr(kUpper, builder.getF64FloatAttr(*entry.cost->upper_s));
      if (entry.cost->energy_j)
        entry.op->setDiscardableAttr(kEnergy, builder.getF64FloatAttr(*entry.cost->energy_j));
      if (!entry.cost->bound.empty())
        entry.op->setDiscardableAttr(kBound, builder.getStringAttr(entry.cost->bound));
      if (!entry.reading.kernel->stand_in.empty())
        entry.op->setDiscardableAttr(kStandIn, builder.getStringAttr(entry.reading.kernel->stand_in));
      if (entry.runs != 1)
        entry.op->setDiscardableAttr(kRuns, builder.getI64IntegerAttr(entry.runs));
    }
    if (!entry.reading.why.empty())
      entry.op->setDiscardableAttr(kSkipped, builder.getStringAttr(entry.reading.why));
  }

  /// The sum over operations whose cost and number of runs are known; energy only where it is known of all of them.
  void summarise(ArrayRef<Entry> entries) {
    double latency_s = 0.0, energy_j = 0.0;
    int64_t covered = 0;
    bool energyOfAll = true;
    for (const Entry &entry : entries) {
      if (!entry.reading.why.empty())
        continue;
      ++covered;
      latency_s += static_cast<double>(entry.runs) * entry.cost->latency_s;
      energy_j += static_cast<double>(entry.runs) * entry.cost->energy_j.value_or(0.0);
      energyOfAll &= entry.cost->energy_j.has_value();
    }
    Builder builder(&getContext());
    func::FuncOp function = getOperation();
    if (covered > 0)
      function->setDiscardableAttr(kTotalLatency, builder.getF64FloatAttr(latency_s));
    if (covered > 0 && energyOfAll)
      function->setDiscardableAttr(kTotalEnergy, builder.getF64FloatAttr(energy_j));
    function->setDiscardableAttr(kCovered, builder.getI64IntegerAttr(covered));
    function->setDiscardableAttr(kLeftOut, builder.getI64IntegerAttr(static_cast<int64_t>(entries.size()) - covered));
  }
};

} // namespace

void registerAnnotate() { PassRegistration<AnnotatePass>(); }

} // namespace kernelcast
