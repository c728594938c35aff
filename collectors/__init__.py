"""Run kernels on this machine and append what was measured: timing, meters, environment, campaigns."""
