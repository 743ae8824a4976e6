"""Measured costs of a machine, from which the planner predicts."""
