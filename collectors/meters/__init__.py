"""Energy sensors: one protocol (`protocol`), one sensor per file, and `find` to choose the one this machine has."""
