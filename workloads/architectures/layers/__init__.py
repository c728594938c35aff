"""The parts of layers: attention, feed-forward networks, mixers with a state, each with its kernels, weights and memory."""
