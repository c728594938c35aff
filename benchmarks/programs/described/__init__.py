"""Programs from public descriptions of operations, kernels and networks, written as text without any framework."""
