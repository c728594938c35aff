"""Promoted models, and the MLflow registry."""
