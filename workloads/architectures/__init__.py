"""Models from their `config.json` alone: facts, the kernels of a step under a plan, memory, estimates"""
