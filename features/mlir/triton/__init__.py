"""Triton functions as compiled code sees them: layouts, liveness, shared memory, instruction counts."""
