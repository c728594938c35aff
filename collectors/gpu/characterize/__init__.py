"""The fixed probes that tell a GPU's peaks, bandwidths, latencies and power."""
