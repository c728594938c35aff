"""Commands that put kernels side by side: on devices, along a size, among configurations."""
