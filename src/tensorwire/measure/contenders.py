"""The sides of a comparison: protocols, and the settings of their tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tensorwire.errors import UsageError

PROTOCOLS = ("grpc", "grpc++")


TRANSPORTS = ("auto", "tcp", "memory")


def parse_protocols(text: str) -> tuple[str, ...]:
    """The protocols of "grpc,grpc++", in that order.

    Raises:
        UsageError: one is unknown, named twice, or there is none.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in PROTOCOLS:
            raise UsageError(f"unknown protocol {name!r}: --protocols takes grpc, grpc++ or both")
    if not names:
        raise UsageError("--protocols names no protocol: give grpc, grpc++ or grpc,grpc++")
    if len(set(names)) != len(names):
        raise UsageError(f"--protocols {text} names a protocol twice")
    return names


@dataclass(frozen=True)
class Setting:
    """The settings of a protocol's tasks.

    `transport`, one of TRANSPORTS, reaches the tasks as TENSORWIRE_TRANSPORT, `checksum` as
    TENSORWIRE_CHECKSUM.
    """

    tensor_fuse: bool = False
    transport: str = "auto"
    checksum: bool = False

    def task_environment(self) -> dict[str, str]:
        # Benchmarks of the way between tasks leave accelerators alone.
        return {
            "TENSORWIRE_TRANSPORT": self.transport,
            "TENSORWIRE_CHECKSUM": str(int(self.checksum)),
            "CUDA_VISIBLE_DEVICES": "-1",
        }


@dataclass(frozen=True)
class Contender:
    """A protocol as it takes part in a comparison."""

    protocol: str
    setting: Setting

    @property
    def name(self) -> str:
        """The name in tables and ratios: "grpc++ fused"."""
        return side_name(self.protocol, self.setting.tensor_fuse)


def side_name(protocol: str, tensor_fuse: bool) -> str:
    """The name of a side of a comparison: "grpc", "grpc++ fused"."""
    return f"{protocol} fused" if tensor_fuse else protocol


def contenders(protocols: Sequence[str], setting: Setting) -> tuple[Contender, ...]:
    """Each protocol without fusion, as in a stock TensorFlow.

    If `setting` asks for fusion, the last protocol takes part a second time, with it.
    """
    single = dataclasses.replace(setting, tensor_fuse=False)
    chosen = [Contender(protocol, single) for protocol in protocols]
    if setting.tensor_fuse:
        chosen.append(Contender(protocols[-1], setting))
    return tuple(chosen)


PAIRS = (
    ("grpc++", "grpc"),
    ("grpc++ fused", "grpc"),
    ("grpc++ fused", "grpc++"),
    ("grpc fused", "grpc"),
    ("grpc++", "grpc fused"),
)
"""Contenders' names, the one that should be faster first, in the order in which they are shown."""


DEFAULT_SETTING = Setting()
