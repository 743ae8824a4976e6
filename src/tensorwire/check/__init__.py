"""The checks of `tensorwire check`: this machine, and the tasks of a cluster."""
