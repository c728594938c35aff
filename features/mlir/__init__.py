"""MLIR text as kernelcast sees it: read into an op graph, understood as work, grouped into kernels, made into vectors."""
