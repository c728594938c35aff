"""From measured rows to an artifact."""
