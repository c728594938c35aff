"""Records that are no measured rows: compiled kernels, launch traces, MLIR modules, usage logs."""
