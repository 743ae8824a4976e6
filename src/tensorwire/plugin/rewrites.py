"""What asks for rewrites of graphs: a session's ConfigProto, and otherwise the environment.

The plug-in reads both: the headers in native/tensorflow/rewrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorwire import settings
from tensorwire.errors import UsageError

REWRITES = {
    "tensor_fuse": "tensorwire_fuse",
    "unique_pull": "tensorwire_unique_pull",
    "summed_push": "tensorwire_summed_push",
    "bundles": "tensorwire_bundles",
    "exact_rewrites": "tensorwire_exact_rewrites",
}
"""By the argument of ConfigProto: the name of a custom optimizer in a session's RewriterConfig. A
TensorFlow without the plug-in ignores it. The last one stands for all, which keep results bitwise
identical."""
ARGUMENTS = (*REWRITES, "wire_dtype", "wire_dtype_exclude")
"""What `choose` takes."""
EXACT = "exact"
"""The word for all of them in the environment; each one's word is its argument's name."""

WIRE_DTYPES = ("bfloat16", "float16")
"""What floats of training steps may be sent as, instead of 32 bits."""
_ALL_BITS = "float32"
WORDS = (EXACT, *list(REWRITES)[:-1], *WIRE_DTYPES)
"""What TENSORWIRE_REWRITES takes, and float32=PATTERN for variables that keep 32 bits."""

PARTIAL_RUN_NODE = "tensorwire_partial_run"
"""A node of this name tells the plug-in not to rewrite the graph."""


def of_process(environment: Mapping[str, str]) -> list[str]:
    """The words of TENSORWIRE_REWRITES: the rewrites of sessions and functions that choose none.

    Raises:
        UsageError: a word is unknown, or two dtypes are named.
    """
    text = environment.get(settings.REWRITES, "")
    words = [word for each in text.split(",") if (word := each.strip())]
    unknown = [word for word in words if word not in WORDS and not word.startswith("float32=")]
    if unknown or set(WIRE_DTYPES) <= set(words):
        raise UsageError(
            f"environment variable {settings.REWRITES}={text}: expected words of "
            f"{', '.join(WORDS)} and float32=PATTERN, and one dtype at most"
        )
    return words


def with_words(environment: Mapping[str, str], words: Sequence[str]) -> str:
    """The value of TENSORWIRE_REWRITES with these words, too; a dtype replaces another one."""
    replaced = WIRE_DTYPES if set(WIRE_DTYPES) & set(words) else ()
    kept = [word for word in of_process(environment) if word not in replaced]
    return ",".join(dict.fromkeys([*kept, *words]))


def choose(
    config: Any,
    *,
    wire_dtype: Any = None,
    wire_dtype_exclude: str | Sequence[str] = (),
    **wanted: bool | None,
) -> None:
    """Switches rewrites on or off in a ConfigProto.

    Args:
        wire_dtype: one of WIRE_DTYPES, or "float32" for all bits, or the tf.DType of that name.
        wire_dtype_exclude: patterns of names of variables, as in a shell: ``"dense/*"``.
        wanted: those of REWRITES; None: the environment decides.

    Raises:
        UsageError: `wire_dtype` is another dtype, or a pattern contains a comma.
    """
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    for argument, is_wanted in wanted.items():
        if is_wanted is not None:
            entry = optimizers.add(name=REWRITES[argument])
            if not is_wanted:
                entry.parameter_map["off"].b = True
    if wire_dtype is None:
        return
    name = getattr(wire_dtype, "name", wire_dtype)
    if name not in (*WIRE_DTYPES, _ALL_BITS):
        known = ", ".join([*WIRE_DTYPES, _ALL_BITS])
        raise UsageError(f"wire_dtype takes one of {known}, and not {name!r}")
    exclude = wire_dtype_exclude
    patterns = [exclude] if isinstance(exclude, str) else list(exclude)
    if any("," in pattern for pattern in patterns):
        raise UsageError("wire_dtype_exclude takes a list of patterns; none may have a comma")
    entry = optimizers.add(name="tensorwire_wire_dtype")
    entry.parameter_map["dtype"].s = name.encode()
    entry.parameter_map["exclude"].s = ",".join(patterns).encode()
