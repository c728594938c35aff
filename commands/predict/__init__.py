"""Commands that predict."""
