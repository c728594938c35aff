"""A spec as plain data: read from what a user sent, written as a flat row, described by a JSON Schema."""
