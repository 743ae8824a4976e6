"""The environment variables that users set: their names, their old names, and how they are read.

An argument in code wins over an option of a command, and an option over a variable: a command sets
the variables of what it starts, and a session asks its ConfigProto first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from difflib import get_close_matches

from tensorwire.errors import UsageError

METRICS = "TENSORWIRE_METRICS"
"""Where a task serves its metrics: HOST:PORT, a port of loopback, or unix:PATH."""
REWRITES = "TENSORWIRE_REWRITES"
"""The rewrites of all graphs: `plugin.rewrites` says which words it takes."""

_PREFIX = "TENSORWIRE_"
_ALIKE = 0.75
"""Least likeness of a name to a setting's for it to be taken for that, misspelt. Other names are
left alone: Kubernetes sets some for every service."""

SETTINGS = tuple(
    _PREFIX + name
    for name in [
        "BIND",
        "CACHE",
        "CHECKSUM",
        "ENDPOINT_MAP",
        "HOST_DIR",
        "METRICS",
        "PEER_TIMEOUT_S",
        "POOL_MB",
        "PREBUILT",
        "REWRITES",
        "STREAMS",
        "TLS",
        "TOKEN_FILE",
        "TRANSPORT",
    ]
)

# Names of earlier versions, for this version only.
_OLD_REWRITES = {
    f"{_PREFIX}{word.upper()}": word.removesuffix("_rewrites")
    for word in ("exact_rewrites", "tensor_fuse", "unique_pull", "summed_push", "bundles")
}
_OLD_DTYPE, _OLD_EXCLUDE = "TENSORWIRE_WIRE_DTYPE", "TENSORWIRE_WIRE_DTYPE_EXCLUDE"
_OLD_HOST, _OLD_PORT, _OLD_SOCKET = (f"{METRICS}_{name}" for name in ("HOST", "PORT", "SOCKET"))
_REPLACED = (*_OLD_REWRITES, _OLD_DTYPE, _OLD_EXCLUDE, _OLD_HOST, _OLD_PORT, _OLD_SOCKET)
OLD_FOLDER = "TENSORWIRE_RUNTIME"
_STILL_READ = {
    "TENSORWIRE_TOKEN": "TENSORWIRE_TOKEN_FILE=FILE",
    OLD_FOLDER: "XDG_RUNTIME_DIR=FOLDER",
}
OLD = (*_REPLACED, *_STILL_READ)


def is_on(name: str, default: bool = False, environment: Mapping[str, str] = os.environ) -> bool:
    """The value of a variable that is 1 or 0, or true or false.

    Raises:
        UsageError: it has another value.
    """
    text = environment.get(name, "")
    if text.lower() in ("", "0", "1", "false", "true"):
        return text.lower() in ("1", "true") if text else default
    raise UsageError(f"environment variable {name}={text}: expected 1 or 0")


def address_text(host: str, port: int | str) -> str:
    """An address as METRICS takes it; an IPv6 host gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def replace_old_names(environment: MutableMapping[str, str]) -> str:
    """Gives each setting its present name; returns a line for the user if one had an old name.

    A present name that is set, too, wins.

    Raises:
        UsageError: the value of an old name is wrong.
    """
    old = {name: environment.pop(name) for name in _REPLACED if name in environment}
    words = [word for name, word in _OLD_REWRITES.items() if is_on(name, environment=old)]
    if (dtype := old.get(_OLD_DTYPE, "0")) not in ("", "0"):
        words += [
            dtype,
            *(f"float32={each}" for each in old.get(_OLD_EXCLUDE, "").split(",") if each),
        ]
    new = {REWRITES: ",".join(words)}
    if port := old.get(_OLD_PORT):
        host = old.get(_OLD_HOST) or "127.0.0.1"
        new[METRICS] = address_text(host, port)
    if path := old.get(_OLD_SOCKET):
        new[METRICS] = f"unix:{path}"
    for name, value in new.items():
        if value:
            environment.setdefault(name, value)
    instead = [f"{name}={value}" for name, value in new.items() if value]
    instead += [advice for name, advice in _STILL_READ.items() if environment.get(name)]
    named = sorted(filter(old.get, old)) + [name for name in _STILL_READ if environment.get(name)]
    if not named:
        return ""
    what = f"set {' '.join(instead)} instead" if instead else "leave them out"
    return f"old names of settings, for this version only: {', '.join(named)}; {what}"


def misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that is nearly a setting, and is read by nobody."""
    known = [name.removeprefix(_PREFIX) for name in SETTINGS]
    for name in sorted(environment.keys() - _STILL_READ.keys()):
        own = name.removeprefix(_PREFIX)
        if name == own or own in known:
            continue
        if alike := get_close_matches(own, known, n=1, cutoff=_ALIKE):
            yield f"{name} is no setting and has no effect: set {_PREFIX}{alike[0]}"
