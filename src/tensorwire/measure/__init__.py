"""Measuring: sides that take turns, their rounds and ratios, and the record of the results.

Nothing here knows a particular experiment.
"""
