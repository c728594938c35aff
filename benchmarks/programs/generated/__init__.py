"""Random programs in StableHLO and linalg."""
