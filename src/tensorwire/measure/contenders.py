"""The sides of a comparison: protocols, and the settings of their tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tensorwire.errors import UsageError

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
"""The arguments of tensorwire.tf.ConfigProto that rewrite graphs, and the names of their sides."""


def parse_rewrites(text: str) -> tuple[str, ...]:
    """The rewrites of "tensor_fuse,unique_pull", in that order; all of "all", none of "none".

    Raises:
        UsageError: one is unknown or named twice.
    """
    if text.strip() in ("all", "none"):
        return tuple(REWRITES) if text.strip() == "all" else ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in REWRITES:
            raise UsageError(
                f"unknown rewrite {name!r}: --rewrites takes {', '.join(REWRITES)}, all or none"
            )
    if len(set(names)) != len(names):
        raise UsageError(f"--rewrites {text} names a rewrite twice")
    return names


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
    TENSORWIRE_CHECKSUM. `rewrites`, of REWRITES, are those of its graphs; in the setting of a whole
    comparison, those with each of which the last protocol takes part once more.
    """

    rewrites: tuple[str, ...] = ()
    transport: str = "auto"
    checksum: bool = False

    @property
    def tensor_fuse(self) -> bool:
        return TENSOR_FUSE in self.rewrites

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
        return rewritten_name(self.protocol, self.setting.rewrites)


def rewritten_name(protocol: str, rewrites: Sequence[str]) -> str:
    """The name of a side of a comparison: "grpc", "grpc++ unique pull"."""
    return " ".join([protocol, *(REWRITES[each] for each in rewrites)])


def side_name(protocol: str, tensor_fuse: bool) -> str:
    """The name of a side that may only be fused: "grpc", "grpc++ fused"."""
    return rewritten_name(protocol, (TENSOR_FUSE,) if tensor_fuse else ())


def contenders(protocols: Sequence[str], setting: Setting) -> tuple[Contender, ...]:
    """Each protocol without rewrites, as in a stock TensorFlow.

    With each rewrite of `setting`, the last protocol takes part once more.
    """
    return (
        *(Contender(each, dataclasses.replace(setting, rewrites=())) for each in protocols),
        *(
            Contender(protocols[-1], dataclasses.replace(setting, rewrites=(each,)))
            for each in setting.rewrites
        ),
    )


PAIRS = (
    ("grpc++", "grpc"),
    *(
        pair
        for name in REWRITES.values()
        for pair in (
            (f"grpc++ {name}", "grpc"),
            (f"grpc++ {name}", "grpc++"),
            (f"grpc {name}", "grpc"),
            ("grpc++", f"grpc {name}"),
        )
    ),
    ("grpc++ exact", "grpc++ fused"),
    ("grpc exact", "grpc fused"),
)
"""Contenders' names, the one that should be faster first, in the order in which they are shown."""


DEFAULT_SETTING = Setting()
