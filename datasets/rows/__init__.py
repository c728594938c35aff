"""Measured rows: their schema, identity, checks and splits."""
