"""The walk over the operations of a function, and the rules it applies to each."""
