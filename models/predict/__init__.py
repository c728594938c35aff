"""From specs to predictions with intervals."""
