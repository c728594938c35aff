// What a model says a kernel costs.
#pragma once

#include "kernelcast_model.hpp"
#include "reading.hpp"

#include <optional>
#include <string>

namespace kernelcast {

/// Predicted seconds with the ends of their interval where the model knows them, joules where it knows those, and the limit
/// that binds ("compute", "dram" …; "" where the model's features have no named limits).
struct Cost {
  double latency_s = 0.0;
  std::optional<double> lower_s, upper_s;
  std::optional<double> energy_j;
  std::string bound;
};

/// The cost of a kernel on a device with so many CPU threads (0: all cores, or a GPU); nothing, and why, where the model
/// does not know the dtype or has no answer for the sizes.
std::optional<Cost> costOf(const Model &model, const Kernel &kernel, const std::string &device, int64_t threads,
                           std::string &why);

} // namespace kernelcast
