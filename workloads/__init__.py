"""What is predicted from many kernels: whole models, PyTorch and MLIR programs."""
