"""Kernels beside each other on two cores of this machine: how much longer each takes than alone"""
