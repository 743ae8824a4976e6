"""The environment that loads the plug-in into a script that does not know of it.

The script gets its own interpreter, exactly as with ``python SCRIPT``: its tracebacks, its exit
status, its ``__main__`` and what it does before it imports TensorFlow do not change. A folder at
the front of PYTHONPATH holds a ``sitecustomize`` that waits for the import of TensorFlow. Python
processes that the script starts inherit this environment, so its tasks use the protocol, too.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorwire import settings
from tensorwire.errors import TensorwireError
from tensorwire.plugin import rewrites
from tensorwire.plugin.patches import after_import

PROTOCOL_VARIABLE = "TENSORWIRE_RUN_PROTOCOL"
DEBUG_VARIABLE = "TENSORWIRE_RUN_DEBUG"
PLACEMENT_VARIABLE = "TENSORWIRE_RUN_PLACEMENT"
DEVICE_FILTERS_VARIABLE = "TENSORWIRE_RUN_DEVICE_FILTERS"
DRY_RUN_VARIABLE = "TENSORWIRE_DRY_RUN"

_SITE = Path(__file__).parent / "site"


def environment(
    protocol: str | None,
    debug: bool,
    inherited: Mapping[str, str] | None = None,
    placement: str | None = None,
    words: Sequence[str] = (),
    device_filters: bool = False,
) -> dict[str, str]:
    """An environment in which Python processes load the plug-in when they import TensorFlow.

    `protocol` overrides the script's protocol. `words` (`rewrites.WORDS`) are the rewrites of all
    sessions and functions, beside the inherited ones. `placement` (encoded by `placement.default`)
    decides where variables are placed. `device_filters`: sessions of workers see the ps and their
    own task only.
    """
    env = dict(os.environ if inherited is None else inherited)
    others = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(_SITE)]
    env["PYTHONPATH"] = os.pathsep.join([str(_SITE), *others])
    env[PROTOCOL_VARIABLE] = protocol or ""
    if words:
        env[settings.REWRITES] = rewrites.with_words(env, words)
    env[DEVICE_FILTERS_VARIABLE] = "auto" if device_filters else ""
    env[DEBUG_VARIABLE] = "1" if debug else ""
    if placement:
        env[PLACEMENT_VARIABLE] = placement
    return env


def wait_for_tensorflow() -> None:
    """Hooks the import of TensorFlow. Called in each new interpreter."""
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
        # The script cannot go on, but the error is not its own: print one line, no traceback.
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        sys.stderr.write(f"tensorwire: error: {error}\n")
        sys.exit(error.exit_code)
    protocol = os.environ.get(PROTOCOL_VARIABLE)
    if protocol:
        patches.replace_protocol(protocol)
    if os.environ.get(DEVICE_FILTERS_VARIABLE):
        patches.let_sessions_see_ps_only()
    if placement := os.environ.get(PLACEMENT_VARIABLE):
        from tensorwire.placement import default

        default.install(placement)
