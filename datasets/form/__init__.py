"""The form in which users bring and take measured rows, one table per kernel family, and what importers share."""
