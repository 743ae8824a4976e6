"""The sides of a comparison: protocols, and the settings of their tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.errors import UsageError
from tensorwire.plugin.rewrites import WIRE_DTYPES

PROTOCOLS = ("grpc", "grpc++")


TRANSPORTS = ("auto", "tcp", "memory")


TENSOR_FUSE = "tensor_fuse"
EXACT_REWRITES = "exact_rewrites"
REWRITES = {
    TENSOR_FUSE: "fused",
    "unique_pull": "unique pull",
    "summed_push": "summed push",
    "bundles": "bundles",
    EXACT_REWRITES: "exact",
}
"""The exact rewrites of graphs, and the names of their sides."""


def parse_rewrites(text: str) -> tuple[str, ...]:
    """Parses "tensor_fuse,exact_rewrites+bfloat16" into sides with one or several rewrites each.

    "all" means all exact rewrites, each on its own side; "none" means no side.

    Raises:
        UsageError: a rewrite is unknown, or a side is named twice.
    """
    if text.strip() in ("all", "none"):
        return tuple(REWRITES) if text.strip() == "all" else ()
    sides = tuple(
        "+".join(name.strip() for name in side.split("+"))
        for side in text.split(",")
        if side.strip()
    )
    for name in (name for side in sides for name in side.split("+")):
        if name not in (*REWRITES, *WIRE_DTYPES):
            raise UsageError(
                f"unknown rewrite {name!r}: --rewrites takes "
                f"{', '.join([*REWRITES, *WIRE_DTYPES])}, several joined by +, all or none"
            )
    if len(set(sides)) != len(sides):
        raise UsageError(f"--rewrites {text} names a side twice")
    return sides


def config_arguments(rewrites: Sequence[str]) -> dict[str, Any]:
    """The arguments of tensorwire.tf.ConfigProto for the rewrites of one side."""
    return dict(("wire_dtype", each) if each in WIRE_DTYPES else (each, True) for each in rewrites)


def parse_protocols(text: str) -> tuple[str, ...]:
    """Parses "grpc,grpc++"; keeps the order.

    Raises:
        UsageError: a name is unknown or given twice, or the list is empty.
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

    `transport`, one of TRANSPORTS, is passed to the tasks as TENSORWIRE_TRANSPORT, and `checksum`
    as TENSORWIRE_CHECKSUM. `rewrites` (names of REWRITES and WIRE_DTYPES) apply to the graphs. In
    the setting of a whole comparison, `rewrites` has one element for each additional side of the
    last protocol (see parse_rewrites).
    """

    rewrites: tuple[str, ...] = ()
    transport: str = "auto"
    checksum: bool = False

    @property
    def tensor_fuse(self) -> bool:
        return TENSOR_FUSE in self.rewrites

    def task_environment(self) -> dict[str, str]:
        # Benchmarks of the traffic between tasks do not use accelerators.
        return {
            "TENSORWIRE_TRANSPORT": self.transport,
            "TENSORWIRE_CHECKSUM": str(int(self.checksum)),
            "CUDA_VISIBLE_DEVICES": "-1",
        }


@dataclass(frozen=True)
class Contender:
    """A protocol with a setting, as one side of a comparison."""

    protocol: str
    setting: Setting

    @property
    def name(self) -> str:
        """The name in tables and ratios: "grpc++ fused"."""
        return rewritten_name(self.protocol, self.setting.rewrites)


def rewritten_name(protocol: str, rewrites: Sequence[str]) -> str:
    """The name of a side of a comparison: "grpc", "grpc++ unique pull"."""
    return " ".join([protocol, *(REWRITES.get(each, each) for each in rewrites)])


def side_name(protocol: str, tensor_fuse: bool) -> str:
    """The name of a side without rewrites other than fusion: "grpc", "grpc++ fused"."""
    return rewritten_name(protocol, (TENSOR_FUSE,) if tensor_fuse else ())


def contenders(protocols: Sequence[str], setting: Setting) -> tuple[Contender, ...]:
    """Each protocol without rewrites, and the last protocol again with each of the rewrites.

    The rewrites are the elements of `setting.rewrites`.
    """
    return (
        *(Contender(each, dataclasses.replace(setting, rewrites=())) for each in protocols),
        *(
            Contender(protocols[-1], dataclasses.replace(setting, rewrites=tuple(each.split("+"))))
            for each in setting.rewrites
        ),
    )


PAIRS = (
    ("grpc++", "grpc"),
    *(
        pair
        for name in (*REWRITES.values(), *WIRE_DTYPES, *(f"exact {each}" for each in WIRE_DTYPES))
        for pair in (
            (f"grpc++ {name}", "grpc"),
            (f"grpc++ {name}", "grpc++"),
            (f"grpc {name}", "grpc"),
            ("grpc++", f"grpc {name}"),
        )
    ),
    ("grpc++ exact", "grpc++ fused"),
    ("grpc exact", "grpc fused"),
    *((f"grpc++ exact {each}", "grpc++ exact") for each in WIRE_DTYPES),
)
"""Pairs of names to compare, in the order of presentation; the first should be faster."""


DEFAULT_SETTING = Setting()
