"""The commands of `tensorwire k8s`, and options that they share; `compare` is of the laboratory."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import Number, options_of, takes
from tensorwire.cli.options import Output
from tensorwire.dataclass_json import json_text, to_document
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import apply_labels, find_case, known_cases, label_command, plan_labels
from tensorwire.options import option, options

if TYPE_CHECKING:
    from tensorwire.k8s.connection import Connection


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


_FIRST = ("name", "image", "script")


def job_options(command: Callable[..., Any]) -> Any:
    """The options that describe a job. The command gets `job` and `templates`."""

    @functools.wraps(command)
    def with_job(*, cases_file: Path | None, **given: Any) -> Any:
        case, sizes = given["case"], (given["workers"], given["ps"])
        if case is None and None in sizes:
            raise UsageError("say how large the job is: --case NAME, or --workers and --ps")
        if case is not None:
            if sizes != (None, None):
                raise UsageError("a --case has its own numbers: leave --workers and --ps out")
            found = find_case(case, known_cases(cases_file))
            given |= {"workers": found.workers, "ps": found.ps}
            given["wanted_workers_per_node"] = (
                given["wanted_workers_per_node"] or found.workers_per_node
            )
        return command(job=Job(**taken(given)), **given)

    of_case = common("case", "cases_file", "workers", "ps")
    return options_of(Job, _FIRST)(of_case(job_fields(_FIRST)(with_job)))


def job_fields(without: Sequence[str]) -> Callable[[Any], Any]:
    """The options of a job but some, for a command that uses `taken`."""
    fields = [each.field for each in options(Job) if each.field not in without]
    of_manifests = common("no_token", "namespace", "templates")
    return lambda command: options_of(Job, fields)(of_manifests(command))


def taken(given: dict[str, Any]) -> dict[str, Any]:
    """Takes out of the given options those of a job; returns the fields of a Job."""
    names = [each.name for each in dataclasses.fields(Job) if each.name in given]
    fields = {name: given.pop(name) for name in names}
    no_token, secret = given.pop("no_token"), fields["own_token_secret"]
    if secret is not None and no_token:
        raise UsageError("give --token-secret or --no-token")
    own = None if no_token or secret is not None else secrets.token_hex(32)
    return {**fields, "token": own}


@click.command(epilog="Example: tensorwire k8s cases --cases mine.yaml")
@common("cases_file")
@takes(Output, "output", "form")
def cases(cases_file: Path | None, output: Output) -> None:
    """List the two scenarios (layouts) and their cases: those of the published test, and yours.

    A file of cases: {"cases": [{"name": "small", "workers": 4, "ps": 2, "workers_per_node": 2}]}
    """
    from tensorwire.report import terminal
    from tensorwire.report.k8s import cases_section

    known = known_cases(cases_file)
    output.give(lambda: json_text({"cases": known}), lambda: terminal.show([cases_section(known)]))


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s render --case 2 --layout isolated --name flights --image REGISTRY/IMAGE \\
      --script train.py | kubectl apply -f -
  tensorwire k8s render --workers 50 --ps 5 --workers-per-node 10 --name ctr --folder manifests \\
      --image REGISTRY/IMAGE --script /app/train.py -- --ps_hosts={ps_hosts} \\
      --task_index={task_index}"""
)
@job_options
@click.option(
    "--folder",
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one file per object into this folder, instead of one stream.",
)
def render(job: Job, templates: Path | None, folder: Path | None) -> None:
    """Write a job's manifests, as one YAML stream or as one file per object.

    After -- come the script's own arguments. {task_index}, {task_type}, {ps_hosts}, {worker_hosts},
    {ps} and {workers} in them are replaced by their values. TF_CONFIG is set, too.
    """
    from tensorwire.k8s import render as manifests

    text = manifests.render(job, templates)
    files = manifests.files(text)
    if folder is None:
        click.echo(text, nl=False)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in files.items():
            (folder / name).write_text(document, encoding="utf-8")
    except OSError as error:
        raise TensorwireError(f"cannot write into {folder}: {error.strerror}") from None
    click.echo(f"{len(files)} objects in {folder}: kubectl apply -f {folder}")


@click.command(epilog="Example: tensorwire k8s templates mine, then k8s render --templates mine …")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def templates(folder: Path) -> None:
    """Copy the Jinja2 templates of the manifests into FOLDER, to change them.

    Keep the files that you change and remove the others: --templates uses a file of your folder if
    it exists there, and the built-in template otherwise.
    """
    from tensorwire.k8s.render import copy_templates

    try:
        for path in copy_templates(folder):
            click.echo(path)
    except OSError as error:
        raise TensorwireError(f"cannot write into {folder}: {error.strerror}") from None


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s label --case 2 --layout isolated --nodes node-{1..10}   # prints commands
  tensorwire k8s label --case 1 --nodes node-1 --apply"""
)
@click.option("--case", required=True, help="A published case (1 to 4), or one of --cases.")
@common("cases_file")
@options_of(Job, ("layout",))
@click.option("--nodes", "first_nodes", help="Nodes to label, separated by commas or blanks.")
@click.argument("more_nodes", nargs=-1, metavar="[NODE]...")
@click.option("--apply", is_flag=True, help="Label the nodes, instead of printing commands.")
@click.option("--remove", is_flag=True, help="Remove the labels.")
@common("context")
def label(
    case: str,
    cases_file: Path | None,
    layout: str,
    first_nodes: str | None,
    more_nodes: tuple[str, ...],
    apply: bool,
    remove: bool,
    context: str | None,
) -> None:
    """Print the labels that --scheduling labels looks for, or label the nodes.

    The labels are those of the published test: SCENCE (1 co-located, 2 isolated), CASE, INDEX of
    the server, and TYPE (worker or ps) in the isolated layout.
    """
    found = find_case(case, known_cases(cases_file))
    nodes = [*(first_nodes or "").replace(",", " ").split(), *more_nodes]
    if not nodes:
        raise UsageError("name the nodes: --nodes node-1,node-2 (`kubectl get nodes` lists them)")
    wanted = plan_labels(found, layout, nodes, remove=remove)
    if not apply:
        for node, labels in wanted.items():
            click.echo(label_command(node, labels))
        return
    from tensorwire.k8s.connection import Connection

    with Connection(context) as connection:
        apply_labels(connection, wanted)
    click.echo(f"{'unlabelled' if remove else 'labelled'} {', '.join(wanted)}")


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s submit --case 1 --name flights --image REGISTRY/IMAGE --script train.py --follow
  tensorwire k8s submit --dry-run --case 1 --name flights --image IMAGE --script train.py"""
)
@job_options
@common("context")
@click.option("--dry-run", is_flag=True, help="Show what would change in the cluster, and stop.")
@click.option("--follow", is_flag=True, help="Follow the job to its end.")
@click.option("--clean-up", is_flag=True, help="Remove everything once the job has succeeded.")
@common("timeout", "interval")
def submit(
    job: Job,
    templates: Path | None,
    context: str | None,
    dry_run: bool,
    follow: bool,
    clean_up: bool,
    timeout: float,
    interval: float,
) -> None:
    """Start a job, and with --follow follow it to its end.

    Submitting the same job again changes nothing and follows the existing job. The exit status is 0
    only if the job has succeeded. Ctrl-C stops following; the job goes on.
    """
    from tensorwire.k8s import render as manifests
    from tensorwire.k8s import submit as cluster
    from tensorwire.k8s import watch
    from tensorwire.k8s.connection import Connection
    from tensorwire.k8s.state import FAILED
    from tensorwire.report.k8s import StateLines

    with Connection(context, job.namespace) as connection:
        job = cluster.with_kept_token(connection, job)
        objects = manifests.parse(manifests.render(job, templates))
        changes = (cluster.preview if dry_run else cluster.submit)(connection, objects)
        for change in changes if dry_run else ():
            click.echo(change.difference, nl=False)
        counts = Counter(change.what for change in changes)
        done = ", ".join(f"{count} {what}" for what, count in counts.items())
        where = f"{job.name} in namespace {connection.namespace}"
        click.echo(f"{where}: {'would be ' if dry_run else ''}{done}", err=dry_run)
        if dry_run or not (follow or clean_up):
            return
        state = watch.wait(
            connection,
            job.name,
            up_within_s=timeout,
            interval_s=interval,
            tell=StateLines(job.name, click.echo),
        )
        if state.outcome == FAILED:
            raise TensorwireError(watch.failure(connection, job.name, state))
        if clean_up:
            removed = cluster.delete(connection, job.name, timeout_s=120)
            click.echo(f"removed {len(removed)} objects")


@click.command(epilog="Example: tensorwire k8s status flights")
@on_cluster
@click.option("--follow", is_flag=True, help="Follow the job to its end.")
@common("interval")
@takes(Output, "output", "form")
def status(
    connection: Connection, name: str, follow: bool, interval: float, output: Output
) -> None:
    """Show the tasks of the job NAME, their problems, and how fast the job trains.

    The exit status is 1 if the job has failed.
    """
    from tensorwire.k8s import watch
    from tensorwire.k8s.state import FAILED
    from tensorwire.report import terminal
    from tensorwire.report.k8s import StateLines, state_line, tasks_section

    progress = None
    if follow:
        tell = StateLines(name, functools.partial(click.echo, err=output.is_json))
        state = watch.wait(connection, name, up_within_s=math.inf, interval_s=interval, tell=tell)
    else:
        state = watch.observe(connection, name)
        progress = watch.read_progress(connection, state, min(interval, 2.0))

    def table() -> None:
        terminal.show([tasks_section(state)])
        lines = [state_line(name, state, progress), *state.all_troubles]
        click.echo("\n  ".join(lines))

    if output.is_json or not follow:
        output.give(lambda: json_text({**to_document(state), "progress": progress}), table)
    if state.outcome == FAILED:
        raise TensorwireError(watch.failure(connection, name, state))


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s logs flights --tail 5
  tensorwire k8s logs flights --task worker:0 --follow"""
)
@on_cluster
@click.option(
    "--task", help="One task, such as worker:3, or all of a role, such as worker.  [default: all]"
)
@click.option(
    "--tail", type=click.IntRange(min=0), help="Show only this many last lines of each task."
)
@click.option("--follow", "-f", is_flag=True, help="Keep showing new lines, until Ctrl-C.")
def logs(
    connection: Connection, name: str, task: str | None, tail: int | None, follow: bool
) -> None:
    """Show what the tasks of the job NAME print. Each line begins with the name of its task."""
    from tensorwire.k8s import watch

    tasks = watch.find_tasks(watch.observe(connection, name), task)
    if len(tasks) == 1:  # why it has no log is an error
        for line in watch.log(connection, tasks[0], tail=tail, follow=follow):
            click.echo(f"{tasks[0].name}: {line}")
        return
    for who, line in watch.logs(connection, tasks, tail=tail, follow=follow):
        click.echo(f"{who.name}: {line}")


@click.command(epilog="Example: tensorwire k8s scale flights --workers 8")
@click.option(
    "--workers",
    required=True,
    type=click.IntRange(min=1),
    help="How many workers are to run, at most the --max-workers of the job.",
)
@on_cluster
def scale(connection: Connection, name: str, workers: int) -> None:
    """Change how many workers of the job NAME run, without restarting a task.

    The job was submitted with --max-workers, and its script takes its data from a
    tensorwire.tf.WorkQueue: new workers take items from it, and those that end give theirs back.
    The number of ps is fixed.
    """
    from tensorwire.k8s import submit as cluster

    before = cluster.scale(connection, name, workers)
    click.echo(f"{name}: {before} workers before, {workers} now")


@click.command(epilog="Example: tensorwire k8s delete flights")
@on_cluster
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Number(min=0),
    default=120.0,
    show_default=True,
    help="Seconds to wait for the pods to be deleted.",
)
def delete(connection: Connection, name: str, timeout: float) -> None:
    """Remove all objects of the job NAME, and wait until its pods are gone.

    Removes all objects with the job's label. A job that does not exist is not an error.
    """
    from tensorwire.k8s import submit as cluster

    removed = cluster.delete(connection, name, timeout)
    for each in removed:
        click.echo(f"removed {each}")
    if not removed:
        click.echo(f"there is nothing of {name} in namespace {connection.namespace}")
