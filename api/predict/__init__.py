"""Routes that predict."""
