"""Libraries that run kernels on a GPU; one file each, found by `collectors.runner.gpu_runners`."""
