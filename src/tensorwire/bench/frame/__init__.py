"""Measuring: variants that take turns, their rounds and ratios, and the record of the results.

This package is independent of particular experiments.
"""
