"""What a night checks: its store, its devices beside earlier nights, and the serving model."""
