"""Finds the model of a training script by running the script until it would train."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorwire import settings
from tensorwire.dataclass_json import from_document
from tensorwire.errors import TensorwireError
from tensorwire.laboratory import laboratory
from tensorwire.placement.plan import Model
from tensorwire.run import environment as run_environment

DEADLINE_S = 120.0
_POLL_S = 0.05


def model_of_script(
    command: Sequence[str], environment: Mapping[str, str], deadline_s: float = DEADLINE_S
) -> Model:
    """Runs ``python COMMAND`` as a dry run: it builds its graph, and is ended before it trains.

    No server is started and no other task is needed. The model has no variables if the script ends,
    or waits as a ps does, before it has made a variable for a ps.

    Raises:
        TensorwireError: the script failed, or did not finish within `deadline_s` seconds.
    """
    with laboratory("lab").LocalCluster({"script": 1}) as cluster:
        found = cluster.directory / "variables.json"
        env = {
            **run_environment.environment(None, False, environment),
            run_environment.DRY_RUN_VARIABLE: str(found),
            settings.METRICS: "",  # a dry run has no metrics to serve
        }
        script = cluster.start("script", 0, [sys.executable, *command], env)
        deadline = time.monotonic() + deadline_s
        # Do not wait for the script's end: a script that starts its own tasks waits for them.
        while not found.exists() and script.poll() is None:
            if time.monotonic() > deadline:
                raise TensorwireError(
                    f"{command[0]} has not opened a training session within {deadline_s:g} s"
                    f"{_last_words(script.log)}; set a longer --timeout"
                )
            time.sleep(_POLL_S)
        if found.exists():
            return from_document(Model, json.loads(found.read_text()))
        if script.poll():
            raise TensorwireError(
                f"{' '.join(command)} failed before training{_last_words(script.log)}"
            )
        return Model(())


def _last_words(log: Path) -> str:
    """The exception that ended the script, as one line, or else the last line of its log."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    traces = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    after = lines[traces[-1] + 1 :] if traces else lines[-1:]
    said = next((line for line in after if not line.startswith(" ")), "")
    return f": {said}" if said else ""
