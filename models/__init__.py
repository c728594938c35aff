"""Regressors, intervals, domain check, evaluation, artifacts and registry."""
