"""What writes the MLIR modules that are measured: JAX, torch-mlir and a generator of random programs."""
