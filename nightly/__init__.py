"""A night on one machine or a fleet: measure where it matters, retrain, promote only what is no worse, and report."""
