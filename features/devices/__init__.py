"""One YAML file per device, and how such a file is read and checked."""
