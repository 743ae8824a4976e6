"""Metrics of tasks and of the machine: interfaces, processes, the engine."""
