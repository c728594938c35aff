"""Programs as feature vectors for the learned models of whole programs."""
