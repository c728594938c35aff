"""Programs written in PyTorch."""
