"""A cluster in a box: the tasks of a job as processes, and hosts as network namespaces."""

from tensorwire.lab.hosts import Host, two_hosts
from tensorwire.lab.local import LocalCluster, Task

__all__ = ["Host", "LocalCluster", "Task", "two_hosts"]
