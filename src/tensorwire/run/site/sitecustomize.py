"""Runs first in every interpreter under ``tensorwire run``, then steps aside.

It takes its folder off ``sys.path`` again and hands over to the ``sitecustomize`` that would
have run without it, so that a script sees what it would see anyway.
"""

import contextlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_here = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _here]

# A process of another Python environment, which has no tensorwire, keeps its own protocol.
with contextlib.suppress(ImportError):
    from tensorwire.run.environment import wait_for_tensorflow

    wait_for_tensorflow()

_next = PathFinder.find_spec("sitecustomize", sys.path)
if _next is not None and _next.loader is not None:
    _module = module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)
