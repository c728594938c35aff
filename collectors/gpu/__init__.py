"""Measuring on a GPU: runners, timing by CUDA graphs, energy, the worker process, characterising, and the campaign."""
