"""The append-only store of measured rows, in a folder or at a URL."""
