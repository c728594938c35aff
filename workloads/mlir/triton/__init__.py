"""The learned model of compiled Triton code."""
