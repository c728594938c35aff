"""Which kernels the operators of PyTorch run as, by a table."""
