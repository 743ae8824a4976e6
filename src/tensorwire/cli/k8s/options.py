"""Options that several of the commands have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tensorwire.errors import UsageError
from tensorwire.k8s.layout import COLOCATED, LAYOUTS

Command = TypeVar("Command", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)
_PORT = click.IntRange(min=1, max=65535)

cases_option = click.option(
    "--cases",
    "cases_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A YAML file with cases of your own.",
)
layout_option = click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default=COLOCATED,
    show_default=True,
    help="colocated: workers and one ps on each node; isolated: on different nodes.",
)
namespace_option = click.option("--namespace", "-n", help="Default: the kubeconfig's.")
context_option = click.option("--context", help="Of the kubeconfig.  [default: its current one]")
name_argument = click.argument("name")

_JOB_OPTIONS = [
    click.option("--name", required=True, help="Of the job, and in front of all its objects'."),
    click.option("--image", required=True, help="Container image with tensorwire and TensorFlow."),
    click.option(
        "--script",
        required=True,
        help="The training script: a file here, which travels with the job, or the absolute path "
        "of one in the image.",
    ),
    click.option("--case", help="A published case (1 to 4), or one of --cases."),
    cases_option,
    click.option("--workers", type=_COUNT, help="Instead of --case, with --ps."),
    click.option("--ps", type=_COUNT, help="Instead of --case, with --workers."),
    click.option("--workers-per-node", type=_COUNT, help="[default: the case's]"),
    layout_option,
    click.option(
        "--placement",
        type=click.Choice(["affinity", "labels"]),
        default="affinity",
        show_default=True,
        help="affinity: the pods find together; labels: on nodes that `k8s label` has labelled.",
    ),
    click.option(
        "--format",
        type=click.Choice(["plain", "jobset"]),
        default="plain",
        show_default=True,
        help="plain works on any cluster; jobset needs JobSet's controller.",
    ),
    click.option(
        "--api",
        type=click.Choice(["server", "estimator", "strategy"]),
        default="server",
        show_default=True,
        help="What the script uses: tf.train.Server; tf.estimator or ParameterServerStrategy, "
        "which get a chief.",
    ),
    click.option(
        "--protocol",
        type=click.Choice(["grpc++", "grpc"]),
        default="grpc++",
        show_default=True,
        help="Used whatever the script says.",
    ),
    click.option("--tensor-fuse", is_flag=True, help="As in `tensorwire run`."),
    click.option("--worker-cpu", default="300m", show_default=True, help="Of each worker."),
    click.option("--worker-memory", default="4Gi", show_default=True),
    click.option("--ps-cpu", default="2", show_default=True, help="Of each ps."),
    click.option("--ps-memory", default="4Gi", show_default=True),
    click.option("--grpc-port", type=_PORT, default=2222, show_default=True),
    click.option("--metrics-port", type=_PORT, default=9100, show_default=True),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=3,
        show_default=True,
        help="How often a worker is started again before the job has failed.",
    ),
    click.option("--env", metavar="NAME=VALUE", multiple=True, help="For every task."),
    click.option(
        "--claim",
        metavar="CLAIM:/PATH",
        multiple=True,
        help="A PersistentVolumeClaim that every task mounts, for data or checkpoints.",
    ),
    click.option("--pull-secret", help="With which the image is pulled."),
    click.option(
        "--service-account",
        help="One that may list Jobs, where you may not make the job's own.",
    ),
    namespace_option,
    click.option(
        "--templates",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder with templates of your own (see `tensorwire k8s templates`).",
    ),
    click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]..."),
]


def job_options(command: Command) -> Command:
    """The options that describe a job. The command gets `job` and `templates`."""

    @functools.wraps(command)
    def with_job(**options: Any) -> Any:
        from tensorwire.k8s.job import Job, Resources, Script

        def take(*names: str) -> dict[str, Any]:
            return {name: options.pop(name) for name in names}

        sizes = _sizes(**take("case", "cases_file", "workers", "ps", "workers_per_node"))
        job = Job(
            script=Script.named(options.pop("script")),
            worker_resources=Resources(options.pop("worker_cpu"), options.pop("worker_memory")),
            ps_resources=Resources(options.pop("ps_cpu"), options.pop("ps_memory")),
            environment=_pairs("--env", options.pop("env"), "=", "NAME=VALUE"),
            claims=_pairs("--claim", options.pop("claim"), ":", "CLAIM:/PATH"),
            **sizes,
            **take("name", "image", "layout", "placement", "format", "api", "protocol"),
            **take("tensor_fuse", "grpc_port", "metrics_port", "retries", "pull_secret"),
            **take("service_account", "arguments"),
            namespace=options["namespace"],
        )
        return command(job=job, **options)

    decorated: Any = with_job
    for option in reversed(_JOB_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _sizes(
    case: str | None,
    cases_file: Path | None,
    workers: int | None,
    ps: int | None,
    workers_per_node: int | None,
) -> dict[str, Any]:
    """The number of tasks, from a case or as they were said."""
    from tensorwire.k8s.cases import PUBLISHED, find_case, read_cases

    if case is None:
        if workers is None or ps is None:
            raise UsageError("say how large the job is: --case NAME, or --workers and --ps")
        return {"workers": workers, "ps": ps, "wanted_workers_per_node": workers_per_node}
    if workers is not None or ps is not None:
        raise UsageError("a --case has its own numbers: leave --workers and --ps out")
    found = find_case(case, (*PUBLISHED, *(read_cases(cases_file) if cases_file else ())))
    return {
        "case": found.name,
        "workers": found.workers,
        "ps": found.ps,
        "wanted_workers_per_node": workers_per_node or found.workers_per_node,
    }


def _pairs(option: str, said: tuple[str, ...], separator: str, form: str) -> dict[str, str]:
    pairs = {}
    for each in said:
        name, found, value = each.partition(separator)
        if not found:
            raise UsageError(f"{option} {each}: give {form}")
        pairs[name] = value
    return pairs
