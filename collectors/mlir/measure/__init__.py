"""Compiling and timing modules in a process of its own."""
