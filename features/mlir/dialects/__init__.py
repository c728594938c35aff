"""What the operations of each dialect cost: one plug-in per file, a table from operation name to rule, found by `discover`."""
