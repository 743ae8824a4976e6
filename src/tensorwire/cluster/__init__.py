"""Who is in the job: tasks, their addresses, and where each task's data plane listens."""

from tensorwire.cluster.endpoint_map import (
    ENDPOINT_MAP_NAME,
    data_address,
    data_port,
    read_endpoint_map,
    write_endpoint_map,
)
from tensorwire.cluster.spec import ClusterSpec, Task, split_address
from tensorwire.cluster.tf_config import TfConfig, parse_tf_config

__all__ = [
    "ENDPOINT_MAP_NAME",
    "ClusterSpec",
    "Task",
    "TfConfig",
    "data_address",
    "data_port",
    "parse_tf_config",
    "read_endpoint_map",
    "split_address",
    "write_endpoint_map",
]
