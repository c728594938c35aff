"""Cost models inside compilers: one part per compiler, each talking only to `CostModel`."""
