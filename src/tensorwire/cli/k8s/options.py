"""Options that several of the k8s commands have."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tensorwire.cli.click_extensions import options_of
from tensorwire.errors import UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import find_case, known_cases
from tensorwire.options import option, options


@dataclass(frozen=True)
class CommonOptions:
    """Options of which each command has some, by `options_of`."""

    case: str | None = option(None, "A published case (1 to 4), or one of --cases.")
    cases_file: Path | None = option(
        None, "A YAML file with cases of your own.", name="--cases", metavar="FILE"
    )
    workers: int | None = option(None, "Number of workers, with --ps instead of --case.", least=1)
    ps: int | None = option(None, "Number of ps, with --workers instead of --case.", least=1)
    no_token: bool = option(False, "No job token: any client can join.")
    namespace: str | None = option(
        None, "Namespace of the job.  [default: the kubeconfig's]", name="--namespace -n"
    )
    templates: Path | None = option(
        None,
        "A folder with templates of your own (see `tensorwire k8s templates`).",
        metavar="DIR",
        path="folder",
    )
    context: str | None = option(None, "Context of the kubeconfig.  [default: its current one]")
    timeout: float = option(
        900.0, "Seconds that the tasks may take to start.", metavar="SECONDS", least=1
    )
    interval: float = option(
        5.0, "Seconds between two looks at the job.", metavar="SECONDS", least=0.1
    )


def common(*fields: str) -> Callable[[Any], Any]:
    """Some of the `CommonOptions`; the command gets each as an argument."""
    return options_of(CommonOptions, fields)


def on_cluster(command: Callable[..., Any]) -> Any:
    """For a command about a job that was submitted: it gets its `name` and a `connection`."""

    @functools.wraps(command)
    def connected(*, namespace: str | None, context: str | None, **others: Any) -> Any:
        from tensorwire.k8s.connection import Connection

        with Connection(context, namespace) as connection:
            return command(connection=connection, **others)

    return click.argument("name")(common("namespace", "context")(connected))


_OF_MANIFESTS = common("no_token", "namespace", "templates")
_FIELDS = [each.field for each in options(Job)]
_FIRST = ("name", "image", "script")


def job_options(command: Callable[..., Any]) -> Any:
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

    of_case = common("case", "cases_file", "workers", "ps")
    return options_of(Job, _FIRST)(of_case(job_fields(_FIRST)(with_job)))


def job_fields(without: Sequence[str]) -> Callable[[Any], Any]:
    """All fields of a job but some as options, for a command that uses `taken`."""
    fields = [name for name in _FIELDS if name not in without]
    return lambda command: options_of(Job, fields)(_OF_MANIFESTS(command))


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Job that are among `options`; all but the namespace leave them."""
    fields = {name: options.pop(name) for name in _FIELDS if name in options}
    no_token, secret = options.pop("no_token"), fields["own_token_secret"]
    if secret is not None and no_token:
        raise UsageError("give --token-secret or --no-token")
    own = None if no_token or secret is not None else secrets.token_hex(32)
    return {**fields, "token": own, "namespace": options["namespace"]}


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
    found = find_case(case, known_cases(cases_file))
    return {
        "case": found.name,
        "workers": found.workers,
        "ps": found.ps,
        "wanted_workers_per_node": workers_per_node or found.workers_per_node,
    }
