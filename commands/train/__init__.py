"""Commands that train, calibrate and evaluate models."""
