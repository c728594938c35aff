"""The kernels of our own that are measured, and how they are compiled ahead."""
