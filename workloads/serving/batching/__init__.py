"""Continuous batching over times of steps: simulated event by event, and in closed form"""
