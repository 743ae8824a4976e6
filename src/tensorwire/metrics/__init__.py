"""Figures of the machine: interfaces, processes, the engine."""
