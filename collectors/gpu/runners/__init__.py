"""Libraries that run kernels on a GPU; one file each, found by `runner.gpu_runners`."""
