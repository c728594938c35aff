"""Which cases a CPU campaign measures."""
