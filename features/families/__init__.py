"""One file per kernel family, each with `FAMILY = KernelFamily(...)`; found by `kernelcast.features.kernel.families`."""
