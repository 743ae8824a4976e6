"""How anything is measured: sides that take turns, their rounds and ratios, and the record of it.

Nothing here knows a particular experiment.
"""
