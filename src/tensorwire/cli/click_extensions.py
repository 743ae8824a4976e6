"""Extensions of click: groups that load commands on demand, and finite numbers."""

from __future__ import annotations

import functools
import importlib
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tensorwire.errors import UsageError
from tensorwire.options import Option, options

Command = TypeVar("Command", bound=Callable[..., Any])

Commands = Mapping[str, tuple[str, str]]
"""Name -> ("module:attribute", the line of help), in the order in which they are listed."""


class LazyGroup(click.Group):
    """A group that imports the module of a command only when the command is used."""

    def __init__(
        self,
        *args: object,
        lazy: Commands,
        everywhere: Sequence[click.Option] = (),
        **kwargs: object,
    ) -> None:
        """`everywhere`: options that each command takes, too, without a line in its help."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy
        self._everywhere = everywhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        known = {parameter.name for parameter in command.params}
        command.params += [each for each in self._everywhere if each.name not in known]
        if isinstance(command, LazyGroup):
            command._everywhere = self._everywhere
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._lazy and (alike := get_close_matches(args[0], self._lazy, n=1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {alike[0]!r}?")
        return super().resolve_command(ctx, args)

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


class SectionedCommand(click.Command):
    """A command whose help lists its options by `Option.section`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                title = getattr(parameter, "section", "") or "Options"
                sections.setdefault(title, []).append(line)
        for title, lines in sections.items():
            with formatter.section(title):
                formatter.write_dl(lines)


class _Option(click.Option):
    def __init__(self, *names: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


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


def options_of(record: type, fields: Sequence[str] | None = None) -> Callable[[Command], Command]:
    """The options of a dataclass (`tensorwire.options`), or of these fields of it.

    The command gets them by their fields.
    """

    def decorate(command: Command) -> Command:
        for each in reversed(list(options(record))):
            if fields is None or each.field in fields:
                command = _click_option(each)(command)
        return command

    return decorate


def takes(record: type, name: str, *fields: str) -> Callable[[Callable[..., Any]], Any]:
    """The options of a dataclass, or of these fields; the command gets the record as `name`.

    What the record's constructor raises is an error of the command line.
    """
    taken = fields or tuple(each.field for each in options(record))

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_record(*args: Any, **given: Any) -> Any:
            made = record(**{field: given.pop(field) for field in taken})
            return command(*args, **given, **{name: made})

        return options_of(record, taken)(with_record)

    return decorate


def _click_option(option: Option) -> Callable[[Command], Command]:
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.default is ...:
        settings["required"] = True
    elif option.kind is bool:
        settings["is_flag"] = True
    else:
        default = option.default if option.default_text is None else option.default_text
        settings["default"] = default if option.show_default else None
        settings["show_default"] = settings["default"] is not None
    if option.repeated:
        settings |= {"multiple": True, "default": (), "show_default": False}
    if option.kind is not bool:
        settings["type"] = _click_type(option)
    if parse := option.parse:
        settings["callback"] = lambda _context, _option, text: None if text is None else parse(text)
    if not option.name.startswith("-"):
        return click.argument(option.name, nargs=-1, metavar=option.metavar)
    return click.option(
        *option.name.split(), option.field, cls=_Option, section=option.section, **settings
    )


def _click_type(option: Option) -> Any:
    if option.choices:
        return click.Choice(option.choices)
    kind = typing.get_args(option.kind)[0] if option.repeated else option.kind
    least = option.least if option.above is None else option.above
    limits: dict[str, Any] = {"min": least, "max": option.most}
    is_limited = any(limit is not None for limit in limits.values())
    if option.parse is not None:
        return str
    if kind is int:
        return click.IntRange(**limits) if is_limited else int
    if kind is float:
        return Number(**limits, min_open=option.above is not None) if is_limited else float
    if kind is Path:
        is_file, is_folder = option.path != "folder", option.path != "file"
        return click.Path(file_okay=is_file, dir_okay=is_folder, path_type=Path)
    return str
