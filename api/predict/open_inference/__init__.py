"""The Open Inference Protocol, version 2, over HTTP: every kernel family is a model, rows of kernels are its tensors."""
