"""Commands that run and keep the service."""
