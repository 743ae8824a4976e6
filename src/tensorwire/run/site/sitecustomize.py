"""Runs first in every interpreter under ``tensorwire run``.

It then removes its folder from ``sys.path`` and runs the ``sitecustomize`` that would have run
without it, so that the script sees its usual environment.
"""

import contextlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_here = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _here]

# A Python environment without tensorwire keeps its own protocol.
with contextlib.suppress(ImportError):
    from tensorwire.run.environment import wait_for_tensorflow

    wait_for_tensorflow()

_next = PathFinder.find_spec("sitecustomize", sys.path)
if _next is not None and _next.loader is not None:
    _module = module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)
