"""The measured tables: their one schema, the append-only store, splits, checks and importers."""
