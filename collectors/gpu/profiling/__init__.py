"""What profilers say: traffic of kernels counted by Nsight Compute, launch and queue times out of torch's traces."""
