"""Whether a new model may take the place of the one that serves, and which past models are worth keeping."""
