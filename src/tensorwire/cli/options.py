"""Options that several commands have."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tensorwire.errors import UsageError
from tensorwire.lab import LabSettings
from tensorwire.lab.settings import EXAMPLE
from tensorwire.lab.settings import parse as parse_lab
from tensorwire.measure.contenders import (
    PROTOCOLS,
    REWRITES,
    TENSOR_FUSE,
    TRANSPORTS,
    Setting,
    parse_protocols,
    parse_rewrites,
)
from tensorwire.measure.remote_hosts import HostRole
from tensorwire.plugin.rewrites import WIRE_DTYPES

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Comparison:
    """The values of the options that every experiment has."""

    named_protocols: tuple[str, ...] | None
    """The protocols that the user named; None if none was named."""
    named_rewrites: tuple[str, ...] | None
    """The rewrites that the user named; None if there was no --rewrites."""
    rounds: int
    setting: Setting
    json_path: Path | None
    report_path: Path | None
    lab: LabSettings | None = None
    """The lab to measure in, if the user wants one."""
    part: HostRole | None = None
    """The role of this host, if other hosts take part."""

    @property
    def protocols(self) -> tuple[str, ...]:
        return self.named_protocols or PROTOCOLS


def _in_a_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Rejects a path that cannot be written, before the measurement starts."""
    if path is None:
        return None
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{parameter.opts[0]} {path}: there is no folder {path.parent}")
    if not path.exists():
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UsageError(
                f"{parameter.opts[0]} {path}: cannot write in {folder}: {error.strerror}"
            ) from None
    return path


def _report_in_a_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Like `_in_a_folder`; also fails if the packages that draw pages are not installed."""
    if path is not None:
        from tensorwire.report.charts import check_installed

        check_installed()
    return _in_a_folder(context, parameter, path)


def json_option(command: Command) -> Command:
    """--json, as `json_path`."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=_in_a_folder,
        help="Write the record to this file.",
    )(command)


def report_option(command: Command) -> Command:
    """--report, as `report_path`."""
    return click.option(
        "--report",
        "report_path",
        metavar="FILE.html",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=_report_in_a_folder,
        help="Write an HTML page with plots.",
    )(command)


def protocols_option(command: Command) -> Command:
    """--protocols, as `protocols`: the text, not parsed."""
    return click.option(
        "--protocols",
        metavar="LIST",
        help="grpc, grpc++ or grpc,grpc++.  [default: grpc,grpc++]",
    )(command)


def transport_option(default: str) -> Callable[[Command], Command]:
    """--transport, as `transport`."""
    return click.option(
        "--transport",
        type=click.Choice(TRANSPORTS),
        default=default,
        show_default=True,
        help="How grpc++ moves payloads between tasks of one host.",
    )


def check_transport(transport: str, protocols: Sequence[str] | None, default: str) -> None:
    """Raises UsageError if --transport is set but --protocols leaves out grpc++, which uses it."""
    if transport != default and protocols is not None and "grpc++" not in protocols:
        raise UsageError(
            f"--transport {transport} is for grpc++, and --protocols {','.join(protocols)} leaves "
            "it out"
        )


def _lab_settings(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> LabSettings | None:
    return None if text is None else parse_lab(text)


def lab_option(command: Command) -> Command:
    """--lab, as `lab`."""
    return click.option(
        "--lab",
        metavar="SETTINGS",
        callback=_lab_settings,
        help=f"Measure between the hosts of a lab: {EXAMPLE}; delay and cpus (per host, such as "
        "cpus=1) are optional. Requires root and tensorwire[lab].",
    )(command)


def comparison_options(
    default_rounds: int,
    *,
    tensor_fuse: bool = True,
    rewrites: bool = False,
    lab: bool = True,
    transport: bool = True,
    protocols: bool = True,
) -> Callable[[Command], Command]:
    """The options that every experiment has. Options without a meaning for it can be left out.

    `tensor_fuse` and `rewrites` are for experiments with graphs; `transport` is for payloads that
    may go through memory.

    The command gets them as one argument, `comparison`.
    """
    fusion = [
        click.option(
            "--tensor-fuse",
            is_flag=True,
            help="Measure the last protocol once more with fused tensors.",
        )
    ]
    rewriting = [
        click.option(
            "--rewrites",
            metavar="LIST",
            callback=lambda _context, _option, text: None if text is None else parse_rewrites(text),
            help="Measure the last protocol once more with each of these rewrites of its graphs: "
            f"{', '.join([*REWRITES, *WIRE_DTYPES])}; a+b combines two; all stands for each exact "
            "one; none for no rewrite.",
        )
    ]
    options = [
        *([protocols_option] if protocols else []),
        click.option(
            "--rounds",
            type=click.IntRange(min=1),
            default=default_rounds,
            show_default=True,
            help="Rounds; in each the protocols take turns (A B A B …).",
        ),
        *(fusion if tensor_fuse else []),
        *(rewriting if rewrites else []),
        *([lab_option] if lab else []),
        *([transport_option("auto")] if transport else []),
        json_option,
        report_option,
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_comparison(
            *,
            rounds: int,
            json_path: Path | None,
            report_path: Path | None,
            protocols: str | None = None,
            transport: str = "auto",
            tensor_fuse: bool = False,
            rewrites: tuple[str, ...] | None = None,
            lab: LabSettings | None = None,
            **others: Any,
        ) -> Any:
            named = None if protocols is None else parse_protocols(protocols)
            check_transport(transport, named, "auto")
            if lab is not None:
                if transport == "memory":
                    raise UsageError("--transport memory: the hosts of a lab share no memory")
                transport = "tcp"  # one machine could share memory, but separate hosts could not
            chosen = rewrites or ()
            if tensor_fuse and TENSOR_FUSE not in chosen:
                chosen = (TENSOR_FUSE, *chosen)
            comparison = Comparison(
                named_protocols=named,
                named_rewrites=rewrites,
                rounds=rounds,
                setting=Setting(rewrites=chosen, transport=transport),
                json_path=json_path,
                report_path=report_path,
                lab=lab,
            )
            return command(comparison=comparison, **others)

        decorated: Any = with_comparison
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate
