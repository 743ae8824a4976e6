"""A cluster in a box: the tasks of a job as processes of this machine."""

from tensorwire.lab.local import LocalCluster, Task

__all__ = ["LocalCluster", "Task"]
