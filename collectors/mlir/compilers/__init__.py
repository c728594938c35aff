"""Compilers of MLIR modules that run what they compile."""
