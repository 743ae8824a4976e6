"""The environment in which a script that does not know the plug-in runs with it.

The script gets an interpreter of its own, exactly as ``python SCRIPT`` would give it one: its
tracebacks, its exit status, its ``__main__`` and what it does before it imports TensorFlow are
untouched. A folder in front of PYTHONPATH holds a ``sitecustomize`` that waits for TensorFlow to be
imported. Both pass to the Python processes that the script starts, so its tasks run on the
protocol too.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plugin.patches import after_import
from tensorwire.plugin.rewrites import EXACT_REWRITES, TENSOR_FUSE, WIRE_DTYPE

PROTOCOL_VARIABLE = "TENSORWIRE_RUN_PROTOCOL"
DEBUG_VARIABLE = "TENSORWIRE_RUN_DEBUG"
PLACEMENT_VARIABLE = "TENSORWIRE_RUN_PLACEMENT"
DRY_RUN_VARIABLE = "TENSORWIRE_DRY_RUN"

_SITE = Path(__file__).parent / "site"


def environment(
    protocol: str | None,
    tensor_fuse: bool,
    debug: bool,
    inherited: Mapping[str, str] | None = None,
    placement: str | None = None,
    exact_rewrites: bool = False,
    wire_dtype: str | None = None,
) -> dict[str, str]:
    """The environment in which Python processes load the plug-in as soon as they import TensorFlow.

    With a `protocol`, they use it whatever the script says; with `tensor_fuse`, all their sessions
    and functions fuse, with `exact_rewrites` they are rewritten in all exact ways; with
    `wire_dtype`, their steps send floats in 16 bits; with `placement` (of `placement.default`),
    their variables are put by it.
    """
    env = dict(os.environ if inherited is None else inherited)
    others = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(_SITE)]
    env["PYTHONPATH"] = os.pathsep.join([str(_SITE), *others])
    env[PROTOCOL_VARIABLE] = protocol or ""
    if tensor_fuse:
        env[TENSOR_FUSE.variable] = "1"
    if exact_rewrites:
        env[EXACT_REWRITES.variable] = "1"
    if wire_dtype:
        env[WIRE_DTYPE.variable] = wire_dtype
    env[DEBUG_VARIABLE] = "1" if debug else ""
    if placement:
        env[PLACEMENT_VARIABLE] = placement
    return env


def check_security() -> None:
    """Refuses before the script begins what its first server would refuse.

    Raises:
        UsageError: the environment asks for a job token or TLS that no task could use.
    """
    from tensorwire import engine  # which not every interpreter that a script starts has to load

    try:
        engine.check_security()
    except ValueError as error:
        raise UsageError(str(error), page="SECURITY.md") from None


def wait_for_tensorflow() -> None:
    """Called in each new interpreter: hooks the import of TensorFlow."""
    if found := os.environ.get(DRY_RUN_VARIABLE):
        from tensorwire.run import variable_observer

        variable_observer.watch(Path(found))
    else:
        after_import("tensorflow", _on_tensorflow)


def _on_tensorflow() -> None:
    from tensorwire.plugin import loader, patches

    try:
        loader.load()
    except TensorwireError as error:
        # The script is not at fault and cannot go on: our line, and no traceback through it.
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        sys.stderr.write(f"tensorwire: error: {error}\n")
        sys.exit(error.exit_code)
    protocol = os.environ.get(PROTOCOL_VARIABLE)
    if protocol:
        patches.replace_protocol(protocol)
    if placement := os.environ.get(PLACEMENT_VARIABLE):
        from tensorwire.placement import default

        default.install(placement)
