"""What a night writes down, its plan, its budget and its lock."""
