"""Models of MLIR programs: composed of kernel predictions, learned from measured modules, and both weighed together."""
