"""Where each task's data plane listens: ``.endpoint_map``, or a fixed rule without one.

The engine holds the one parser and the one rule; this module is their Python face.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorwire import _wire
from tensorwire.cluster.spec import split_address
from tensorwire.errors import UsageError

ENDPOINT_MAP_NAME = ".endpoint_map"
"""The file's name, looked for in the working directory."""


def data_port(grpc_port: int) -> int:
    """The data port of a task whose gRPC port is `grpc_port`, where no map names one.

    20000 above, wrapping past 65535 to 1024. Raises UsageError for what is no port.
    """
    try:
        return _wire.data_port(grpc_port)
    except ValueError as error:
        raise UsageError(str(error)) from None


def data_address(grpc_address: str) -> str:
    """The data address that the rule gives to the task at `grpc_address`."""
    _, port = split_address(grpc_address)
    host = grpc_address.rpartition(":")[0]
    return f"{host}:{data_port(port)}"


def read_endpoint_map(path: Path) -> dict[str, str]:
    """Data address by gRPC address, from a map's file.

    Raises UsageError naming file and line and showing the format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} is not text; it has a line a task: grpc_host:port=data_host:port"
        ) from None
    try:
        return dict(_wire.parse_endpoint_map(text, str(path)))
    except ValueError as error:
        raise UsageError(str(error)) from None


def write_endpoint_map(path: Path, addresses: Mapping[str, str]) -> None:
    """Writes a map of data addresses by gRPC addresses, whole or not at all."""
    for grpc_address, data in addresses.items():
        split_address(grpc_address)
        split_address(data)
    lines = ["# gRPC address=data address, a line a task"]
    lines += [f"{grpc_address}={data}" for grpc_address, data in addresses.items()]
    partial = path.with_name(path.name + ".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
