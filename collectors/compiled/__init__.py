"""What compilers make of GPU kernels for GPUs that need not be there: registers, spills, shared memory, instructions."""
