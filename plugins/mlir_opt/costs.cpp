#include "costs.hpp"

#include "llvm/ADT/STLExtras.h"

namespace kernelcast {
namespace {

/// Name of the largest of the features called bound_NAME_s, the first of equals; "" where the model has none.
std::string bindingLimit(const Model &model, const Sizes &sizes, const std::string &device, const std::string &dtype) {
  std::vector<double> values;
  std::string name, error;
  if (!model.features(sizes, device, dtype, {}, values, error))
    return name;
  double largest = -1.0;
  for (auto [feature, value] : llvm::zip_equal(model.feature_names(), values)) {
    llvm::StringRef limit = feature;
    if (limit.consume_front("bound_") && limit.consume_back("_s") && !limit.empty() && value > largest) {
      largest = value;
      name = limit.str();
    }
  }
  return name;
}

} // namespace

std::optional<Cost> costOf(const Model &model, const Kernel &kernel, const std::string &device, int64_t threads,
                           std::string &why) {
  Sizes sizes = kernel.sizes;
  sizes["threads"] = threads;
  Cost cost;
  double joules = 0.0;
  std::string error;
  if (!model.predict(sizes, device, kernel.dtype, {}, 1, &cost.latency_s, error,
                     model.predicts_energy() ? &joules : nullptr)) {
    why = error;
    return std::nullopt;
  }
  if (model.predicts_energy())
    cost.energy_j = joules;
  cost.bound = bindingLimit(model, sizes, device, kernel.dtype);
  return cost;
}

} // namespace kernelcast
