// What mlir-opt finds when it loads the library: the passes kernelcast-annotate and kernelcast-tile.
#include "mlir/Tools/Plugins/PassPlugin.h"

namespace kernelcast {

/// `kernelcast-annotate`: the cost of operations as attributes.
void registerAnnotate();

/// `kernelcast-tile`: contractions cut into the tiles a cost model ranks first.
void registerTile();

} // namespace kernelcast

extern "C" __attribute__((visibility("default"))) ::mlir::PassPluginLibraryInfo mlirGetPassPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "kernelcast", KERNELCAST_VERSION, []() {
            kernelcast::registerAnnotate();
            kernelcast::registerTile();
          }};
}
