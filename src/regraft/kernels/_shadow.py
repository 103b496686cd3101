"""Stands in for `cython` where Cython is not installed: kernels ask it one thing only."""

compiled = False
