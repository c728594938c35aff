"""Commands for measured rows."""
