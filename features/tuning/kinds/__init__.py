"""Kinds of tuning problems: one file each, with a module constant `KIND`."""
