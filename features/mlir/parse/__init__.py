"""From MLIR text to operations: the parsers of installed packages, and a tolerant one of last resort."""
