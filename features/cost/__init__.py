"""What a kernel costs on paper: operand bytes, lower bounds in seconds, tiles and occupancy."""
