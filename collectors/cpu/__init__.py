"""Measuring kernels on a CPU."""
