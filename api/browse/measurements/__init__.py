"""Measured rows over REST, read by a child process."""
