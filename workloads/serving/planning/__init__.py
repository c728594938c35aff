"""Choosing devices, plans and settings for a service: thousands of plans in closed form, the best of them simulated"""
