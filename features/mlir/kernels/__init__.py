"""From the operations of a function to the kernels it runs: fusion, grouping, recognised idioms."""
