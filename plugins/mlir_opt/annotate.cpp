// kernelcast-annotate: what linalg operations cost on a device, as attributes.
#include "reading.hpp"
#include "session.hpp"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/Interfaces/LoopLikeInterface.h"
#include "mlir/Pass/Pass.h"

#include <cmath>

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

/// Predicted seconds with the ends of their interval where the model knows them, joules where it knows those, and the limit
/// that binds ("compute", "dram" …; "" where the model's features have no named limits).
struct Cost {
  double latency_s = 0.0;
  std::optional<double> lower_s, upper_s;
  std::optional<double> energy_j;
  std::string bound;
};

/// Features of a kernel by name, as the model's formula gives them; empty where it cannot.
std::map<std::string, double> namedFeatures(const Model &model, const Sizes &sizes, const std::string &device,
                                            const std::string &dtype) {
  std::vector<double> values;
  std::map<std::string, double> named;
  std::string error;
  if (model.features(sizes, device, dtype, {}, values, error))
    for (auto [name, value] : llvm::zip_equal(model.feature_names(), values))
      named.emplace(name, value);
  return named;
}

/// Of the features called bound_NAME_s the name of the largest, the first of equals; "" where there are none.
std::string bindingLimit(const Model &model, const std::map<std::string, double> &named) {
  std::string name;
  double largest = -1.0;
  for (const std::string &feature : model.feature_names()) {
    llvm::StringRef limit = feature;
    auto found = named.find(feature);
    if (limit.consume_front("bound_") && limit.consume_back("_s") && !limit.empty() && found != named.end() &&
        found->second > largest) {
      largest = found->second;
      name = limit.str();
    }
  }
  return name;
}

/// An end of the interval: the prediction times exp(sign * width); nothing where the model knows no width.
std::optional<double> end(const Cost &cost, const std::map<std::string, double> &named, const char *width, double sign) {
  auto found = named.find(width);
  if (found == named.end() || found->second <= 0.0)
    return std::nullopt;
  return cost.latency_s * std::exp(sign * found->second);
}

/// The cost of a kernel on a device with so many CPU threads (0: all cores, or a GPU); nothing, and why, where the model
/// does not know the dtype or has no answer for the sizes.
std::optional<Cost> costOf(const Model &model, const Kernel &kernel, const std::string &device, int64_t threads,
                           std::string &why) {
  Sizes sizes = kernel.sizes;
  sizes["threads"] = threads;
  Cost cost;
  double joules = 0.0;
  if (!model.predict(sizes, device, kernel.dtype, {}, 1, &cost.latency_s, why, model.predicts_energy() ? &joules : nullptr))
    return std::nullopt;
  std::map<std::string, double> named = namedFeatures(model, sizes, device, kernel.dtype);
  // One forest of power serves all devices of a file; of some of them none was ever taught.
  auto taught = named.find("has_power");
  if (model.predicts_energy() && (taught == named.end() || taught->second > 0.5))
    cost.energy_j = joules;
  cost.lower_s = end(cost, named, "log_lower", -1.0);
  cost.upper_s = end(cost, named, "log_upper", 1.0);
  cost.bound = bindingLimit(model, named);
  return cost;
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
  Option<std::string> device{*this, "device", llvm::cl::desc("Device to predict for, by name or alias")};
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
      entry.cost = costOf(*asked, *entry.reading.kernel, session.device(), threads, entry.reading.why);
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
    auto number = [&](StringRef name, std::optional<double> value) {
      if (value)
        entry.op->setDiscardableAttr(name, builder.getF64FloatAttr(*value));
    };
    auto text = [&](StringRef name, StringRef value) {
      if (!value.empty())
        entry.op->setDiscardableAttr(name, builder.getStringAttr(value));
    };
    text(kSkipped, entry.reading.why);
    if (!entry.cost)
      return;
    text(kKernel, entry.reading.kernel->title());
    text(kStandIn, entry.reading.kernel->stand_in);
    text(kBound, entry.cost->bound);
    number(kLatency, entry.cost->latency_s);
    number(kLower, entry.cost->lower_s);
    number(kUpper, entry.cost->upper_s);
    number(kEnergy, entry.cost->energy_j);
    if (entry.runs != 1)
      entry.op->setDiscardableAttr(kRuns, builder.getI64IntegerAttr(entry.runs));
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
