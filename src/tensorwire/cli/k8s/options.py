"""Options that several of the k8s commands have."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorwire.cli.click_extensions import Number, options_of
from tensorwire.errors import UsageError
from tensorwire.k8s.job import Job
from tensorwire.options import options

if TYPE_CHECKING:
    from tensorwire.k8s.layout import JobCase

Command = TypeVar("Command", bound=Callable[..., Any])

cases_option = click.option(
    "--cases",
    "cases_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A YAML file with cases of your own.",
)
layout_option = options_of(Job, ("layout",))
namespace_option = click.option(
    "--namespace", "-n", help="Namespace of the job.  [default: the kubeconfig's]"
)
context_option = click.option(
    "--context", help="Context of the kubeconfig.  [default: its current one]"
)
interval_option = click.option(
    "--interval",
    metavar="SECONDS",
    type=Number(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds between two looks at the job.",
)
up_within_option = click.option(
    "--up-within",
    metavar="SECONDS",
    type=Number(min=1),
    default=900.0,
    show_default=True,
    help="Seconds that the tasks may take to start.",
)
name_argument = click.argument("name")

_CASE = [
    click.option("--case", help="A published case (1 to 4), or one of --cases."),
    cases_option,
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Number of workers, with --ps instead of --case.",
    ),
    click.option(
        "--ps",
        type=click.IntRange(min=1),
        help="Number of ps, with --workers instead of --case.",
    ),
]
_WHERE = [
    click.option("--no-token", is_flag=True, help="No job token: any client can join."),
    namespace_option,
    click.option(
        "--templates",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder with templates of your own (see `tensorwire k8s templates`).",
    ),
]
_FIELDS = [each.field for each in options(Job)]
_FIRST = ("name", "image", "script")


def job_options(command: Command) -> Command:
    """The options that describe a job. The command gets `job` and `templates`."""

    @functools.wraps(command)
    def with_job(
        *,
        case: str | None,
        cases_file: Path | None,
        workers: int | None,
        ps: int | None,
        wanted_workers_per_node: int | None,
        **others: Any,
    ) -> Any:
        sizes = _sizes(case, cases_file, workers, ps, wanted_workers_per_node)
        job = Job(**sizes, **taken(others))
        return command(job=job, **others)

    others = [name for name in _FIELDS if name not in _FIRST]
    made: Command = with_options(
        with_job, [options_of(Job, _FIRST), *_CASE, options_of(Job, others), *_WHERE]
    )
    return made


def compared_options(fields: Sequence[str], first: list[Any]) -> Callable[[Any], Any]:
    """Some fields of a job as options, for a command that uses `taken`; after the `first`."""
    return lambda command: with_options(command, [*first, options_of(Job, fields), *_WHERE])


def with_options(command: Any, decorators: Sequence[Any]) -> Any:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Job that are among `options`; all but the namespace leave them."""
    fields = {name: options.pop(name) for name in _FIELDS if name in options}
    no_token, secret = options.pop("no_token"), fields["own_token_secret"]
    if secret is not None and no_token:
        raise UsageError("give --token-secret or --no-token")
    own = None if no_token or secret is not None else secrets.token_hex(32)
    return {**fields, "token": own, "namespace": options["namespace"]}


def find_named_case(case: str, cases_file: Path | None) -> JobCase:
    from tensorwire.k8s.layout import PUBLISHED, find_case, read_cases

    return find_case(case, (*PUBLISHED, *(read_cases(cases_file) if cases_file else ())))


def _sizes(
    case: str | None,
    cases_file: Path | None,
    workers: int | None,
    ps: int | None,
    workers_per_node: int | None,
) -> dict[str, Any]:
    """The numbers of tasks, from a case or from --workers and --ps."""
    if case is None:
        if workers is None or ps is None:
            raise UsageError("say how large the job is: --case NAME, or --workers and --ps")
        return {"workers": workers, "ps": ps, "wanted_workers_per_node": workers_per_node}
    if workers is not None or ps is not None:
        raise UsageError("a --case has its own numbers: leave --workers and --ps out")
    found = find_named_case(case, cases_file)
    return {
        "case": found.name,
        "workers": found.workers,
        "ps": found.ps,
        "wanted_workers_per_node": workers_per_node or found.workers_per_node,
    }
