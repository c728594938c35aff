"""Native MLIR parsers, one module each with a `READER`."""
