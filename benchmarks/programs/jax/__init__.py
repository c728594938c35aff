"""Programs written in JAX."""
