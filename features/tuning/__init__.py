"""What a compiler may choose for an operation, and the features a choice is judged by."""
