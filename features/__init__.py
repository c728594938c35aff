"""What a kernel is, what it costs on paper, and how it becomes a vector. Pure: no I/O but its own YAML."""
