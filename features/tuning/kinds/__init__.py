"""Kinds of tuning problems: a module constant `KIND` in each file, one kind or a tuple of them."""
