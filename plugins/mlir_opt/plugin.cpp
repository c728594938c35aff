// What mlir-opt finds when it loads the library: the passes kernelcast-annotate and kernelcast-tile.
#include "passes.hpp"

#include "mlir/Tools/Plugins/PassPlugin.h"

extern "C" __attribute__((visibility("default"))) ::mlir::PassPluginLibraryInfo mlirGetPassPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "kernelcast", KERNELCAST_VERSION, []() {
            kernelcast::registerAnnotate();
            kernelcast::registerTile();
          }};
}
