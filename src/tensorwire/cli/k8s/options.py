"""Options that several of the k8s commands have."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorwire.cli.click_extensions import Number
from tensorwire.errors import UsageError
from tensorwire.k8s.layout import COLOCATED, LAYOUTS
from tensorwire.placement.plan import STRATEGIES

if TYPE_CHECKING:
    from tensorwire.k8s.layout import JobCase

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

_RESOURCE_OPTIONS = [
    click.option("--worker-cpu", default="300m", show_default=True, help="CPU of each worker."),
    click.option("--worker-memory", default="4Gi", show_default=True),
    click.option("--ps-cpu", default="2", show_default=True, help="CPU of each ps."),
    click.option("--ps-memory", default="4Gi", show_default=True),
]
_REWRITE_OPTIONS = [
    click.option(
        "--tensor-fuse", is_flag=True, help="Send small tensors together, as in `tensorwire run`."
    ),
    click.option(
        "--exact-rewrites",
        is_flag=True,
        help="Send and compute less with the same results, as in `tensorwire run`.",
    ),
]
_POD_OPTIONS = [
    click.option("--grpc-port", type=_PORT, default=2222, show_default=True),
    click.option("--metrics-port", type=_PORT, default=9100, show_default=True),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=3,
        show_default=True,
        help="Restarts of a worker before the job fails.",
    ),
    click.option(
        "--env", metavar="NAME=VALUE", multiple=True, help="Environment variable of every task."
    ),
    click.option(
        "--claim",
        metavar="CLAIM:/PATH",
        multiple=True,
        help="A PersistentVolumeClaim that every task mounts, for data or checkpoints.",
    ),
    click.option("--pull-secret", help="Secret for pulling the image."),
    click.option(
        "--service-account",
        help="An existing service account that may list Jobs, if you may not create one.",
    ),
    click.option(
        "--token-secret",
        metavar="SECRET",
        help="An existing Secret with the job's token under `token`.  [default: a new Secret "
        "with a new token]",
    ),
    click.option("--no-token", is_flag=True, help="No job token: any client can join."),
    namespace_option,
    click.option(
        "--templates",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder with templates of your own (see `tensorwire k8s templates`).",
    ),
    click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]..."),
]
_api_option = click.option(
    "--api",
    type=click.Choice(["server", "estimator", "strategy"]),
    default="server",
    show_default=True,
    help="API of the script: tf.train.Server, tf.estimator or ParameterServerStrategy; the last "
    "two get a chief.",
)

_JOB_OPTIONS = [
    click.option("--name", required=True, help="Name of the job, and prefix of all its objects."),
    click.option("--image", required=True, help="Container image with tensorwire and TensorFlow."),
    click.option(
        "--script",
        required=True,
        help="Training script: a local file, which is stored with the job, or an absolute path in "
        "the image.",
    ),
    click.option("--case", help="A published case (1 to 4), or one of --cases."),
    cases_option,
    click.option("--workers", type=_COUNT, help="Number of workers, with --ps instead of --case."),
    click.option("--ps", type=_COUNT, help="Number of ps, with --workers instead of --case."),
    click.option("--workers-per-node", type=_COUNT, help="[default: the case's]"),
    layout_option,
    click.option(
        "--scheduling",
        type=click.Choice(["affinity", "labels"]),
        default="affinity",
        show_default=True,
        help="affinity: by pod affinity; labels: on nodes that `k8s label` has labelled.",
    ),
    click.option(
        "--format",
        type=click.Choice(["plain", "jobset", "trainjob"]),
        default="plain",
        show_default=True,
        help="plain works on any cluster; jobset needs JobSet's controller, trainjob Kubeflow "
        "Trainer 2.",
    ),
    click.option("--queue", help="A LocalQueue of Kueue in which the job waits (--format jobset)."),
    click.option(
        "--volcano-queue", help="A queue of Volcano, which starts all tasks of the job or none."
    ),
    _api_option,
    click.option(
        "--protocol",
        type=click.Choice(["grpc++", "grpc"]),
        default="grpc++",
        show_default=True,
        help="Protocol of the job; overrides the script's.",
    ),
    *_REWRITE_OPTIONS,
    click.option(
        "--placement",
        type=click.Choice(tuple(STRATEGIES)),
        default="round_robin",
        show_default=True,
        help="Where variables go, as in `tensorwire run`.",
    ),
    *_RESOURCE_OPTIONS,
    *_POD_OPTIONS,
]

_EXPERIMENT_OPTIONS = [
    click.option("--case", required=True, help="A published case (1 to 4), or one of --cases."),
    cases_option,
    click.option(
        "--workers",
        type=_COUNT,
        help="Number of workers, if fewer than the case has (for a small machine).",
    ),
    click.option(
        "--placement",
        metavar="LIST",
        default="round_robin",
        show_default=True,
        help=f"Where variables go, as in `tensorwire run`: {', '.join(STRATEGIES)}; several take "
        "turns.",
    ),
    click.option(
        "--script",
        help="A training script, as for `k8s submit`, that trains until it is stopped.  "
        "[default: a built-in one with one big variable]",
    ),
    click.option("--image", help="Run on a cluster, in this container image.  [default: the lab]"),
    click.option("--name", default="compare", show_default=True, help="Name of the job."),
    _api_option,
    *_REWRITE_OPTIONS,
    *_RESOURCE_OPTIONS,
    *_POD_OPTIONS,
]


def job_options(command: Command) -> Command:
    """The options that describe a job. The command gets `job` and `templates`."""

    @functools.wraps(command)
    def with_job(**options: Any) -> Any:
        from tensorwire.k8s.job import Job, Script

        sizes = _taken(options, "case", "cases_file", "workers", "ps", "workers_per_node")
        job = Job(
            script=Script.named(options.pop("script")),
            **_sizes(**sizes),
            **_taken(options, "name", "image", "layout", "scheduling", "format"),
            **_taken(options, "placement", "protocol", "queue", "volcano_queue"),
            **_common(options),
        )
        return command(job=job, **options)

    return _with(command, with_job, _JOB_OPTIONS)


def experiment_options(command: Command) -> Command:
    """The options of an experiment. The command gets `plan`, `image` and `templates`."""

    @functools.wraps(command)
    def with_plan(
        *,
        case: str,
        cases_file: Path | None,
        workers: int | None,
        placement: str,
        script: str | None,
        image: str | None,
        name: str,
        rounds: int,
        seconds: float,
        up_within: float,
        **options: Any,
    ) -> Any:
        from tensorwire.k8s import layout_comparison
        from tensorwire.k8s.job import Job, Script

        found = _found(case, cases_file)
        job = Job(
            name=name,
            image=image or "image",  # not used in the lab: its tasks run on this machine
            script=Script.named(script, has_image=bool(image))
            if script
            else layout_comparison.hot_model(),
            case=found.name,
            workers=workers or found.workers,
            ps=found.ps,
            wanted_workers_per_node=layout_comparison.workers_per_node(found, workers),
            **_common(options),
        )
        plan = layout_comparison.LayoutComparison(
            found, job, _placements(placement), rounds, seconds, up_within_s=up_within
        )
        return command(plan=plan, image=image, **options)

    return _with(command, with_plan, _EXPERIMENT_OPTIONS)


def _with(command: Command, wrapped: Any, options: list[Any]) -> Command:
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _common(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Job that every command takes; all but the namespace leave `options`."""
    from tensorwire.k8s.job import Resources

    return {
        "worker_resources": Resources(options.pop("worker_cpu"), options.pop("worker_memory")),
        "ps_resources": Resources(options.pop("ps_cpu"), options.pop("ps_memory")),
        "environment": _pairs("--env", options.pop("env"), "=", "NAME=VALUE"),
        "claims": _pairs("--claim", options.pop("claim"), ":", "CLAIM:/PATH"),
        "namespace": options["namespace"],
        **_token(**_taken(options, "token_secret", "no_token")),
        **_taken(options, "api", "tensor_fuse", "exact_rewrites"),
        **_taken(options, "grpc_port", "metrics_port", "retries"),
        **_taken(options, "pull_secret", "service_account", "arguments"),
    }


def _taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Removes the named options from `options` and returns them."""
    return {name: options.pop(name) for name in names}


def _token(token_secret: str | None, no_token: bool) -> dict[str, Any]:
    """Fields of a Job: a new token, unless options name a Secret or disable the token."""
    if token_secret is not None and no_token:
        raise UsageError("give --token-secret or --no-token")
    own = None if no_token or token_secret is not None else secrets.token_hex(32)
    return {"token": own, "own_token_secret": token_secret}


def _placements(text: str) -> tuple[str, ...]:
    """Parses "round_robin,balanced". Raises UsageError for an unknown or a repeated placement."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in STRATEGIES:
            raise UsageError(f"unknown placement {name!r}: choose from {', '.join(STRATEGIES)}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--placement {text}: name one, or several once each")
    return names


def _found(case: str, cases_file: Path | None) -> JobCase:
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
    found = _found(case, cases_file)
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
