"""What is predicted from many kernels: whole models and MLIR programs."""
