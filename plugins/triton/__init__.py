"""Triton: configurations pruned before they are timed."""

from .kernel_maps import FLASH_ATTENTION, GEMM, KernelMap
from .pruning import Pruner, prune

__all__ = ["FLASH_ATTENTION", "GEMM", "KernelMap", "Pruner", "prune"]
