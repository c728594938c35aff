#include "costs.hpp"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <map>

namespace kernelcast {
namespace {

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

} // namespace kernelcast
