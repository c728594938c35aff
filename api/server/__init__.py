"""The server process and its workers."""
