"""What a PyTorch program costs: its operators, recorded under fake tensors, as kernels."""
