"""Extensions of click: groups that load commands on demand, and finite numbers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from tensorwire.errors import UsageError

Commands = Mapping[str, tuple[str, str]]
"""Name -> ("module:attribute", the line of help), in the order in which they are listed."""


class LazyGroup(click.Group):
    """A group that imports the module of a command only when the command is used."""

    def __init__(self, *args: object, lazy: Commands, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


def refuse_unused(why: str, *names: str) -> None:
    """Refuses options that the running command would ignore, given as it is.

    Args:
        why: what to do, after the option's name.
        names: of the command's parameters; their defaults are no request.

    Raises:
        UsageError: one of them is on the command line.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in names and source is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]} {why}")


class Number(click.FloatRange):
    """A range of finite numbers.

    click's own range also accepts "inf", and "nan", which no comparison rejects.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number
