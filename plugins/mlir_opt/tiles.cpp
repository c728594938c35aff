#include "tiles.hpp"

#include <algorithm>
#include <set>

namespace kernelcast {
namespace {

constexpr std::array<int64_t, 9> kTileM = {1, 2, 4, 6, 8, 12, 16, 32, 64};
constexpr std::array<int64_t, 6> kTileN = {16, 32, 48, 64, 128, 256};
constexpr std::array<int64_t, 5> kTileK = {1, 2, 4, 8, 32};

} // namespace

std::vector<Tiles> tileSpace(int64_t m, int64_t n, int64_t k) {
  std::vector<Tiles> space = {{0, 0, 0}};
  std::set<Tiles> seen;
  for (int64_t tileM : kTileM)
    for (int64_t tileN : kTileN)
      for (int64_t tileK : kTileK) {
        // A tile larger than its size is the whole of it.
        Tiles tiles = {std::min(tileM, m), std::min(tileN, n), std::min(tileK, k)};
        if (seen.insert(tiles).second)
          space.push_back(tiles);
      }
  return space;
}

} // namespace kernelcast
