"""What an engine and its service add to the kernels of a step: collectives, and their profiles"""
