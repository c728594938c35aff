"""Serving of language models: times of engine steps, and what a service makes of them"""
