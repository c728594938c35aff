"""What an engine adds to the kernels of a step: collectives, and its profile"""
