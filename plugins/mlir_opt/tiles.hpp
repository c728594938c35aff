// Which tile sizes of a matrix product are worth asking a model about.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kernelcast {

/// Tile sizes of m, n and k; all 0 leaves the operation as it is.
using Tiles = std::array<int64_t, 3>;

/// What kernelcast-tile chooses from for a product of these sizes, in a fixed order, the untiled operation first. Equal to
/// the space of the tuning kind mlir-opt-tiles (features/tuning/kinds/mlir_opt_tiles.py), which a test holds it to.
std::vector<Tiles> tileSpace(int64_t m, int64_t n, int64_t k);

} // namespace kernelcast
