"""Which cases to measure next."""
