"""What single operations compute: their arithmetic, traffic, loops and sizes."""
