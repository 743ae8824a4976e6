"""Labs: the tasks of a job as processes of this machine, and hosts as network namespaces."""

from tensorwire.bench.lab.hosts import Host, Lab
from tensorwire.bench.lab.local import LocalCluster, TaskProcess
from tensorwire.bench.lab.settings import HostSettings, LabSettings

__all__ = ["Host", "HostSettings", "Lab", "LabSettings", "LocalCluster", "TaskProcess"]
