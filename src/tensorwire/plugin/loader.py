"""Loads the engine and the plug-in into this process, and reads its metrics."""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tensorwire import engine, settings
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plugin import patches as tensorflow_patches
from tensorwire.plugin import rewrites
from tensorwire.plugin.build import ensure_built


@dataclass(frozen=True)
class LoadedPlugin:
    """The plug-in in this process. It cannot be unloaded."""

    path: Path
    library: ctypes.CDLL


_lock = threading.Lock()
_log = logging.getLogger(__name__)
_loaded: LoadedPlugin | None = None


def load(patches: bool | None = None) -> Path:
    """Registers the protocol "grpc++" with TensorFlow, once. Returns the library's path.

    Compiles the plug-in if needed.

    Args:
        patches: False takes back what was changed in TensorFlow's ConfigProto, Server and Session
            (see `tensorwire.tf`), True changes it again. The first call changes it unless it is
            False, and a later one without it changes nothing.

    Raises:
        TensorwireError: the plug-in cannot be compiled or loaded; the message says what to do.
    """
    global _loaded  # noqa: PLW0603 - a library is loaded once a process
    with _lock:
        if _loaded is None:
            check_environment()
            _loaded = _load(ensure_built())
            tensorflow_patches.let_estimators_name_our_protocol()
            patches = patches is not False
            if os.environ.get(settings.METRICS):
                # Importing it takes 15 ms, which few processes need.
                from tensorwire.metrics import endpoint

                endpoint.start_from_environment(stats, _await_task)
        if patches is not None:
            tensorflow_patches.switch(patches)
        return _loaded.path


@functools.cache
def operations() -> Any:
    """The module of the plug-in's operations."""
    import tensorflow as tf

    return tf.load_op_library(str(load()))


def check_environment() -> None:
    """Warns of settings with old names, and of those that no part of tensorwire reads.

    Raises UsageError for wrong settings that the plug-in would read too late to reject.
    """
    for sentence in (settings.replace_old_names(os.environ), *settings.misspelt(os.environ)):
        if sentence:
            _log.warning("tensorwire: %s", sentence)
    rewrites.of_process(os.environ)
    pool_mb = os.environ.get("TENSORWIRE_POOL_MB", "")
    if pool_mb and not pool_mb.isdecimal():
        raise UsageError(f"environment variable TENSORWIRE_POOL_MB={pool_mb}: expected a number")


def _load(path: Path) -> LoadedPlugin:
    import tensorflow as tf

    try:
        # The engine first, so that the plug-in finds it by its SONAME and needs no rpath.
        ctypes.CDLL(str(engine.engine_library()))
        tf.load_library(str(path))
        library = ctypes.CDLL(str(path))
    except (OSError, tf.errors.OpError) as error:
        what = getattr(error, "message", None) or error
        raise TensorwireError(
            f"the grpc++ plug-in {path} does not load ({what}); "
            "compile one here: set TENSORWIRE_PREBUILT=0 and run tensorwire build --force"
        ) from None
    library.tensorwire_stats_json.restype = ctypes.c_char_p
    library.tensorwire_stats_json.argtypes = []
    library.tensorwire_await_task.restype = ctypes.c_int
    library.tensorwire_await_task.argtypes = [ctypes.c_int]
    return LoadedPlugin(path, library)


def stats() -> dict[str, Any]:
    """This process's metrics on grpc++ since its start, with totals over all peers.

    The fields of `metrics.task_metrics.TaskMetrics` but "process" and "steps", and of its
    `PeerTraffic` the sums over all peers; "rewrites" and "wire_dtypes", what was rewritten.

    Raises:
        TensorwireError: the plug-in is not loaded.
    """
    if _loaded is None:
        raise TensorwireError("the grpc++ plug-in is not loaded: import tensorwire.tf first")
    return _with_sums(json.loads(_loaded.library.tensorwire_stats_json()))


_OF_TENSORS = {
    *("tx_tensors", "rx_tensors", "tx_tensor_bytes", "rx_tensor_bytes", "not_ready_us", "wire_us")
}
"""Fields of PeerTraffic that the plug-in counts by tensor; it counts the others by connection."""


def _with_sums(found: dict[str, Any]) -> dict[str, Any]:
    """The plug-in's figures, with each peer's tensors summed over their names, and with totals."""
    # Here, because every task imports this module, and most never ask.
    from tensorwire.metrics.task_metrics import FUSED, OUT, PeerTraffic

    tensors: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in found["tensors"]:
        if each["direction"] == FUSED:
            continue  # the tensor that carries it is counted
        way = "tx" if each["direction"] == OUT else "rx"
        tensors[each["task"], each["peer"]].update(
            {
                f"{way}_tensors": each["tensors"],
                f"{way}_tensor_bytes": each["bytes"],
                "not_ready_us": each["not_ready_us"],
                "wire_us": each["wire_us"],
            }
        )
    of_connections = {each.name for each in fields(PeerTraffic)} - _OF_TENSORS - {"task", "peer"}
    totals = {name: sum(peer[name] for peer in found["peers"]) for name in of_connections}
    totals |= {name: sum(each[name] for each in tensors.values()) for name in _OF_TENSORS}
    peers = [
        peer | {name: tensors[peer["task"], peer["peer"]][name] for name in _OF_TENSORS}
        for peer in found["peers"]
    ]
    return {**totals, **found, "peers": peers}


def _await_task() -> None:
    """Returns when this process has a server on grpc++."""
    assert _loaded is not None
    while not _loaded.library.tensorwire_await_task(60_000):
        pass
