"""Which cases a GPU campaign measures, in which order."""
