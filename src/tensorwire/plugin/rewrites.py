"""The settings of sessions and processes that switch on rewrites of graphs.

The plug-in reads them: the headers in native/tensorflow/rewrites.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.errors import UsageError


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of graphs, or several."""

    optimizer: str
    """The name of a custom optimizer in a session's RewriterConfig."""
    variable: str
    """The environment variable: 1 switches the rewrite on in all sessions and functions."""

    def ask_for_it(self, config: Any, **parameters: str) -> None:
        """Switches the rewrite on in `config`; a TensorFlow without the plug-in ignores it."""
        entry = config.graph_options.rewrite_options.custom_optimizers.add(name=self.optimizer)
        for name, value in parameters.items():
            entry.parameter_map[name].s = value.encode()

    def is_asked_for(self, config: Any) -> bool:
        """Whether sessions of this process with this ConfigProto (or with None) use the rewrite."""
        return any(each._is_switched_on(config) for each in (self, EXACT_REWRITES))

    def _is_switched_on(self, config: Any) -> bool:
        if os.environ.get(self.variable, "") not in ("", "0"):
            return True
        if config is None:
            return False
        custom = config.graph_options.rewrite_options.custom_optimizers
        return any(optimizer.name == self.optimizer for optimizer in custom)


TENSOR_FUSE = Rewrite("tensorwire_fuse", "TENSORWIRE_TENSOR_FUSE")
UNIQUE_PULL = Rewrite("tensorwire_unique_pull", "TENSORWIRE_UNIQUE_PULL")
SUMMED_PUSH = Rewrite("tensorwire_summed_push", "TENSORWIRE_SUMMED_PUSH")
BUNDLES = Rewrite("tensorwire_bundles", "TENSORWIRE_BUNDLES")
EXACT_REWRITES = Rewrite("tensorwire_exact_rewrites", "TENSORWIRE_EXACT_REWRITES")
"""All rewrites that keep results bitwise identical."""

WIRE_DTYPE = Rewrite("tensorwire_wire_dtype", "TENSORWIRE_WIRE_DTYPE")
"""Sends pulled and pushed floats in 16 bits; its environment variable holds a WIRE_DTYPES value."""
WIRE_DTYPES = ("bfloat16", "float16")
WIRE_DTYPE_EXCLUDE_VARIABLE = "TENSORWIRE_WIRE_DTYPE_EXCLUDE"


PARTIAL_RUN_NODE = "tensorwire_partial_run"
"""A node of this name tells the plug-in not to rewrite the graph."""


def check_environment() -> None:
    """Raises UsageError if the environment variable of a rewrite has an invalid value."""
    for rewrite in REWRITES.values():
        value = os.environ.get(rewrite.variable, "")
        if value not in ("", "0", "1"):
            raise UsageError(f"environment variable {rewrite.variable}={value}: expected 1 or 0")
    dtype = os.environ.get(WIRE_DTYPE.variable, "")
    if dtype not in ("", "0", *WIRE_DTYPES):
        known = " or ".join(WIRE_DTYPES)
        raise UsageError(f"environment variable {WIRE_DTYPE.variable}={dtype}: expected {known}")


def ask_for_wire_dtype(config: Any, dtype: Any, exclude: str | Sequence[str] = ()) -> None:
    """Makes sessions with this ConfigProto send floats of training steps in 16 bits.

    Args:
        dtype: one of WIRE_DTYPES, or the tf.DType of that name.
        exclude: patterns of names of variables, as in a shell: ``"dense/*"``.

    Raises:
        UsageError: `dtype` is another dtype, or a pattern contains a comma.
    """
    name = getattr(dtype, "name", dtype)
    if name not in WIRE_DTYPES:
        raise UsageError(f"wire_dtype takes {' or '.join(WIRE_DTYPES)}, and not {name!r}")
    patterns = [exclude] if isinstance(exclude, str) else list(exclude)
    if any("," in pattern for pattern in patterns):
        raise UsageError("wire_dtype_exclude takes a list of patterns; none may have a comma")
    WIRE_DTYPE.ask_for_it(config, dtype=name, exclude=",".join(patterns))


REWRITES = {
    "tensor_fuse": TENSOR_FUSE,
    "unique_pull": UNIQUE_PULL,
    "summed_push": SUMMED_PUSH,
    "bundles": BUNDLES,
    "exact_rewrites": EXACT_REWRITES,
}
"""Rewrites by the ConfigProto argument that switches each on."""
