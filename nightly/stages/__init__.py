"""The stages of a night: what each does and reports."""
