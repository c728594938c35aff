"""The learned model of whole programs."""
