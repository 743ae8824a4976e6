"""Numbers as the command line takes them."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A range of finite numbers: click's own let "nan" through, which is above and below nothing,
    and "inf".
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number
