"""Types and attributes of MLIR values."""
