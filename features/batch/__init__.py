"""Many cases at once, in columns, with what follows from a case category alone."""
