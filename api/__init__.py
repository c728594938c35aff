"""The service: REST routes, wire types, metrics and the explorer page."""
