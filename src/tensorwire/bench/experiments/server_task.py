"""Base classes of tasks that use TensorFlow, the plug-in, or a TensorFlow server."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from tensorwire.bench.frame.contenders import config_arguments
from tensorwire.bench.frame.hosted_task import HostedTask, request, thread_count, used_cpu_s
from tensorwire.bench.frame.task_host import first_line
from tensorwire.bench.lab.channel import Message
from tensorwire.cluster import data_port, second_data_port
from tensorwire.errors import TensorwireError

GRPCPP = "grpc++"


class PluginTask(HostedTask):
    """A task with TensorFlow and, if needed, the plug-in."""

    def __init__(self, needs_plugin: bool) -> None:
        """Imports TensorFlow and, with `needs_plugin`, the plug-in.

        Raises:
            TensorwireError: one is not installed, or the plug-in cannot be compiled.
        """
        self._tf: Any = import_for_user("tensorflow")
        self._plugin: Any = import_for_user("tensorwire.tf") if needs_plugin else None

    def ready(self) -> Message:
        return {"tensorflow": str(self._tf.__version__)}

    @request
    def wire(self) -> Message:
        """The plug-in's counters; empty on grpc."""
        return dict(self._plugin.stats()) if self._plugin is not None else {}

    @request
    def cpu(self) -> Message:
        return {"cpu_s": used_cpu_s(), "threads": thread_count()}


class ServerTask(PluginTask):
    """A ps or a worker with a `tf.compat.v1.train.Server`."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        rewrites: Sequence[str] = (),
    ) -> None:
        """Starts the server. `rewrites` (see measure.contenders) are for the task's sessions.

        Raises:
            TensorwireError: the port is in use, or TensorFlow cannot start the server.
        """
        address = spec[job][index]
        port = int(address.rpartition(":")[2])
        _check_free(port)
        if protocol == GRPCPP and second_data_port(port) is None:
            _check_free(data_port(port))
        super().__init__(needs_plugin=protocol == GRPCPP or bool(rewrites))
        self._spec = {name: list(addresses) for name, addresses in spec.items()}
        self._job = job
        self._index = index
        self._protocol = protocol
        self._rewrites = tuple(rewrites)
        try:
            self._server = self._tf.compat.v1.train.Server(
                self._spec, job_name=job, task_index=index, protocol=protocol
            )
        except self._tf.errors.OpError as error:
            raise TensorwireError(
                f"cannot start a {protocol} server on {address}: {first_line(error)}"
            ) from error

    @property
    def target(self) -> str:
        """The target string for a session on this server."""
        return str(self._server.target)

    @property
    def _device(self) -> str:
        return f"/job:{self._job}/task:{self._index}"

    def _enter_graph(self) -> None:
        """Makes a new graph the default graph from now on, because hooks and savers use the
        default.
        """
        self._default_graph = self._tf.Graph().as_default()
        self._default_graph.__enter__()

    def _session_config(self, device_filters: Sequence[str] = ()) -> Any:
        """A ConfigProto with the rewrites of this task."""
        if self._rewrites:
            asked_for = config_arguments(self._rewrites)
            return self._plugin.ConfigProto(**asked_for, device_filters=device_filters)
        return self._tf.compat.v1.ConfigProto(device_filters=device_filters)


def import_for_user(module: str) -> Any:
    """Imports a module that the user must install.

    Raises:
        TensorwireError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise TensorwireError(f"{module} is not installed for this Python") from error


def _check_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Bind as a server does: lingering connections of an earlier server are no conflict.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise TensorwireError(
                f"port {port} is in use on this host: end what listens there, or take another port"
            ) from error
