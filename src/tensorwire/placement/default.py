"""Placement for a script that chooses none: replaces TensorFlow's defaults in this process.

The placement is passed through the environment, so that tasks that the script starts inherit it.
The variables must be known before the script runs; the number of ps is known from its cluster.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.dataclass_json import from_document
from tensorwire.errors import TensorwireError
from tensorwire.placement import device, plan, splits, strategy_v2
from tensorwire.placement.plan import PlacementPlan, Variable
from tensorwire.placement.traffic import Traffic

_MOST_BYTES = 120_000  # the kernel limits a string of the environment to 128 KiB


def encode(variables: Sequence[Variable], traffic: Traffic | None) -> str:
    """Encodes a placement for the environment; no variables means greedy placement by bytes.

    Raises:
        TensorwireError: there are too many variables for the environment.
    """
    document = dataclasses.asdict(_Known(tuple(variables), traffic))
    text = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    if len(text) > _MOST_BYTES:
        raise TensorwireError(
            f"{len(variables)} variables are too many for --placement balanced: "
            "use tensorwire.tf.placement in the script, or --placement greedy"
        )
    return text


def install(encoded: str) -> None:
    """Installs a placement that `encode` made. TensorFlow must have been imported.

    A script that names its own strategy keeps it.
    """
    from tensorflow.python.distribute import parameter_server_strategy_v2 as pss
    from tensorflow.python.training import device_setter

    planner = _Planner(encoded)
    device_setter._RoundRobinStrategy = lambda ps: device.PlannedStrategy(planner.plan(ps))

    def get_split(get: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if planner.latest is None:
            return get(name, *args, **kwargs)
        return splits.splitter(planner.latest)(get, name, *args, **kwargs)

    splits.look_up_in_order()
    splits.get_all_by(get_split)

    extended = pss.ParameterServerStrategyV2Extended
    init = extended.__init__

    @functools.wraps(init)
    def init_with_plan(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        strategy_v2.attach(self, planner.plan(self._num_ps))

    extended.__init__ = init_with_plan


@dataclass(frozen=True)
class _Known:
    """What is known before the script runs."""

    variables: tuple[Variable, ...]
    traffic: Traffic | None


class _Planner:
    def __init__(self, encoded: str) -> None:
        document = json.loads(zlib.decompress(base64.b64decode(encoded)))
        self._known = from_document(_Known, document)
        self.latest: PlacementPlan | None = None

    def plan(self, ps: int) -> PlacementPlan:
        self.latest = plan.balanced(self._known.variables, ps, self._known.traffic)
        return self.latest
