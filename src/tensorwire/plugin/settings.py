"""The environment variables that users set, and those that they meant to set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

_PREFIX = "TENSORWIRE_"
_ALIKE = 0.75
"""Least likeness of a name to a setting's for it to be taken for that, misspelt. Other names are
left alone: Kubernetes sets some for every service."""

SETTINGS = tuple(
    _PREFIX + name
    for name in (
        "BIND",
        "BUNDLES",
        "CACHE",
        "CHECKSUM",
        "ENDPOINT_MAP",
        "EXACT_REWRITES",
        "HOST_DIR",
        "METRICS_HOST",
        "METRICS_PORT",
        "METRICS_SOCKET",
        "PEER_TIMEOUT_S",
        "POOL_MB",
        "PREBUILT",
        "STREAMS",
        "SUMMED_PUSH",
        "TENSOR_FUSE",
        "TLS",
        "TOKEN",
        "TOKEN_FILE",
        "TRANSPORT",
        "UNIQUE_PULL",
        "WIRE_DTYPE",
        "WIRE_DTYPE_EXCLUDE",
    )
)


def misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that is nearly a setting, and is read by nobody."""
    known = [name.removeprefix(_PREFIX) for name in SETTINGS]
    for name in sorted(environment):
        own = name.removeprefix(_PREFIX)
        if name == own or own in known:
            continue
        if alike := get_close_matches(own, known, n=1, cutoff=_ALIKE):
            yield f"{name} is no setting and has no effect: set {_PREFIX}{alike[0]}"
