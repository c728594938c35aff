"""The kernels that are measured, and how they are compiled."""
