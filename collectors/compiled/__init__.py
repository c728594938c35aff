"""What compilers make of GPU kernels for GPUs that need not be present: registers, spills, shared memory, instructions."""
