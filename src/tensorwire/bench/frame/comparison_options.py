"""Options that several experiments have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tensorwire.bench.frame.contenders import (
    PROTOCOLS,
    REWRITES,
    TENSOR_FUSE,
    TRANSPORTS,
    Setting,
    parse_protocols,
    parse_rewrites,
)
from tensorwire.bench.frame.remote_hosts import HostRole
from tensorwire.bench.lab import LabSettings
from tensorwire.bench.lab.settings import EXAMPLE
from tensorwire.bench.lab.settings import parse as parse_lab
from tensorwire.cli.options import json_option, report_option
from tensorwire.errors import UsageError
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

    @property
    def of_plan(self) -> dict[str, Any]:
        """The fields that every plan has."""
        return {"rounds": self.rounds, "protocols": self.protocols, "setting": self.setting}


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
        "cpus=1) are optional. Requires root and tensorwire[bench].",
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
