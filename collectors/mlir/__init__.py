"""MLIR modules of many programs: written, compiled by IREE and XLA, run and timed on this machine."""
