"""Metrics, logs, traces and the usage log."""
