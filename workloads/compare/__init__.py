"""One kernel compared: on devices side by side, along one of its sizes, and among its configurations."""
