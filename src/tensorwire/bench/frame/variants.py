"""The variants of a comparison: protocols, the rewrites of their graphs, and their transport."""

from __future__ import annotations

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
"""The exact rewrites of graphs, and what they are called in a variant's name."""


@dataclass(frozen=True)
class Setting:
    """How the tasks of one variant are set: their protocol, and what goes with it.

    `rewrites` (names of REWRITES and WIRE_DTYPES) apply to the graphs. `transport`, one of
    TRANSPORTS, is passed to the tasks as TENSORWIRE_TRANSPORT, `checksum` as TENSORWIRE_CHECKSUM.
    """

    protocol: str
    rewrites: tuple[str, ...] = ()
    transport: str = "auto"
    checksum: bool = False

    @property
    def name(self) -> str:
        """The variant's name in tables and ratios: "grpc++ fused"."""
        return variant_name(self.protocol, self.rewrites)

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


def variant_name(protocol: str, rewrites: Sequence[str]) -> str:
    """The name of a variant: "grpc", "grpc++ unique pull"."""
    return " ".join([protocol, *(REWRITES.get(each, each) for each in rewrites)])


def settings(
    protocols: Sequence[str], rewrites: Sequence[str] = (), transport: str = "auto"
) -> tuple[Setting, ...]:
    """Each protocol without rewrites, and the last protocol again with each of `rewrites`.

    An element of `rewrites` is one rewrite, or several joined by "+".
    """
    stock = [(protocol, ()) for protocol in protocols]
    rewritten = [(protocols[-1], tuple(each.split("+"))) for each in rewrites]
    return tuple(Setting(name, chosen, transport) for name, chosen in [*stock, *rewritten])


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


def config_arguments(rewrites: Sequence[str]) -> dict[str, Any]:
    """The arguments of tensorwire.tf.ConfigProto for the rewrites of one variant."""
    arguments: dict[str, Any] = {each: True for each in rewrites if each not in WIRE_DTYPES}
    for dtype in (each for each in rewrites if each in WIRE_DTYPES):
        arguments["wire_dtype"] = dtype
    return arguments


def parse_rewrites(text: str) -> tuple[str, ...]:
    """Parses "tensor_fuse,exact_rewrites+bfloat16" into one or several rewrites for each variant.

    "all" means each exact rewrite by itself; "none" means no variant.

    Raises:
        UsageError: a rewrite is unknown, or a variant is named twice.
    """
    if text.strip() in ("all", "none"):
        return tuple(REWRITES) if text.strip() == "all" else ()
    variants = tuple(
        "+".join(name.strip() for name in variant.split("+"))
        for variant in text.split(",")
        if variant.strip()
    )
    known = (*REWRITES, *WIRE_DTYPES)
    for name in (name for variant in variants for name in variant.split("+")):
        if name not in known:
            raise UsageError(
                f"unknown rewrite {name!r}: --rewrites takes {', '.join(known)}, several joined "
                "by +, all or none"
            )
    if len(set(variants)) != len(variants):
        raise UsageError(f"--rewrites {text} names a variant twice")
    return variants


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
