"""Measuring cases on a GPU in a process of its own."""
