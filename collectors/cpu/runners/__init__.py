"""One file per library that runs kernels, each with `RUNNER = Runner(...)`."""
