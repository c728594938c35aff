"""The stages of a night, one file each: what is done, and what is said about it."""
