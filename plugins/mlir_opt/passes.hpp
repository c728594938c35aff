// The passes of this library; each is registered under the name mlir-opt knows it by.
#pragma once

namespace kernelcast {

/// `kernelcast-annotate`: the cost of operations as attributes.
void registerAnnotate();

/// `kernelcast-tile`: contractions cut into the tiles a cost model ranks first.
void registerTile();

} // namespace kernelcast
