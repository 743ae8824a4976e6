"""The load on the machine by other programs during a measurement."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil

from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.record import Noise


class NoiseWatch:
    """Watches the machine from its creation until `seen` is called."""

    def __init__(self) -> None:
        self._load, _, _ = os.getloadavg()
        self._times = psutil.cpu_times()

    def seen(self, rounds: Mapping[str, statistics.Rounds]) -> Noise:
        """The noise so far. `rounds`: the rounds of each side."""
        load, _, _ = os.getloadavg()
        now = psutil.cpu_times()
        # Guest time is also contained in user time.
        fields = [name for name in now._fields if not name.startswith("guest")]
        total_s = sum(getattr(now, name) - getattr(self._times, name) for name in fields)
        stolen_s = now.steal - self._times.steal
        return Noise(
            load_start=self._load,
            load_end=load,
            steal=stolen_s / total_s if total_s > 0 else 0.0,
            scatter={
                name: statistics.scatter(each) for name, each in rounds.items() if len(each) > 1
            },
        )
