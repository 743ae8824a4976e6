"""The options that say where tasks run: this machine, a lab, several hosts, or two ends."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tensorwire.bench.raw_processes import CLIENT, DEFAULT_PORT, SERVER, Target
from tensorwire.cli.click_extensions import Number, refuse_unused
from tensorwire.cli.options import Comparison
from tensorwire.cluster import ClusterSpec
from tensorwire.errors import UsageError
from tensorwire.measure import remote_hosts
from tensorwire.measure.host_pool import HostPool, open_host_pool
from tensorwire.measure.remote_hosts import HostRole
from tensorwire.measure.task_processes import Watcher

Command = TypeVar("Command", bound=Callable[..., Any])

_SEVERAL = "is for several hosts: give --ps-hosts, --worker-hosts and --job, too"
_TWO = "is for two hosts: give --job server, or --job client --target HOST:PORT, too"


def chosen_host_pool(comparison: Comparison, watcher: Watcher) -> AbstractContextManager[HostPool]:
    """This machine, the hosts of a lab, or those of --ps-hosts and --worker-hosts."""
    if comparison.part is not None:
        return remote_hosts.lead(comparison.part, watcher)
    return open_host_pool(comparison.lab)


def between_hosts(command_name: str, *, several: bool = False) -> Callable[[Command], Command]:
    """--ps-hosts, --worker-hosts, --job, --task and --peer-timeout.

    Apply it below `comparison_options`; it puts this host's role into the command's `Comparison`.
    On a host that does not lead, the command is not called: an agent serves instead. `several`:
    there may be more than one ps and one worker.
    """
    where = "HOST:PORT[,…]" if several else "HOST:PORT"
    options = [
        click.option("--ps-hosts", metavar=where, help="Several hosts: address of each ps."),
        click.option(
            "--worker-hosts",
            metavar=where,
            help="Several hosts: address of each worker. The first worker measures.",
        ),
        click.option(
            "--job", type=click.Choice(["ps", "worker"]), help="Several hosts: role of this host."
        ),
        click.option(
            "--task",
            type=int,
            default=0,
            show_default=True,
            help="Several hosts: the task's index, its place in --ps-hosts or --worker-hosts.",
        ),
        click.option(
            "--peer-timeout",
            type=Number(min=0, min_open=True),
            default=120.0,
            show_default=True,
            help="Several hosts: seconds to wait for another host.",
        ),
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_part(
            *,
            comparison: Comparison,
            ps_hosts: str | None,
            worker_hosts: str | None,
            job: str | None,
            task: int,
            peer_timeout: float,
            **others: Any,
        ) -> Any:
            if ps_hosts is None and worker_hosts is None and job is None:
                refuse_unused(_SEVERAL, "task", "peer_timeout")
                return command(comparison=comparison, **others)
            if ps_hosts is None or worker_hosts is None or job is None:
                raise UsageError(
                    "several hosts need --ps-hosts, --worker-hosts and --job (ps or worker)"
                )
            if comparison.lab is not None:
                raise UsageError("--lab makes hosts of its own: leave out --ps-hosts and the like")
            cluster = ClusterSpec.from_hosts(ps=ps_hosts, worker=worker_hosts)
            hosts = {name: tuple(cluster.addresses(name).values()) for name in cluster.jobs}
            if not several and any(len(of_job) != 1 for of_job in hosts.values()):
                raise UsageError(f"{command_name} uses one ps and one worker")
            if not 0 <= task < len(hosts[job]):
                raise UsageError(f"--task {task}: --{job}-hosts has {len(hosts[job])}")
            part = HostRole(command_name, hosts, job, task, peer_timeout)
            if part.leads:
                return command(comparison=dataclasses.replace(comparison, part=part), **others)
            from tensorwire.report.progress import ProgressDisplay

            with ProgressDisplay(command_name, 0) as progress:
                return remote_hosts.serve(part, progress)

        decorated: Any = with_part
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


@dataclass(frozen=True)
class TwoEnds:
    """The options for this host's part in a measurement between two hosts."""

    job: str | None
    """SERVER, CLIENT, or None: both ends run here."""
    port: int
    peer_timeout_s: float
    target: Target | None
    """The server that a client connects to; None for all others."""


def _ends(job: str | None, target: str | None, port: int, peer_timeout_s: float) -> TwoEnds:
    """Raises UsageError if --job and --target contradict each other."""
    if (job == CLIENT) != (target is not None):
        raise UsageError(
            "two hosts need --job server on one and --job client --target HOST:PORT on the other"
        )
    return TwoEnds(job, port, peer_timeout_s, Target(target, peer_timeout_s) if target else None)


def two_ends_options(command: Command) -> Command:
    """--job, --target, --port and --peer-timeout; the command gets them as `ends`."""

    @functools.wraps(command)
    def with_ends(
        *, job: str | None, target: str | None, port: int, peer_timeout: float, **others: Any
    ) -> Any:
        ends = _ends(job, target, port, peer_timeout)
        if job is None:
            refuse_unused(_TWO, "port", "peer_timeout")
        return command(ends=ends, **others)

    decorated: Any = with_ends
    for option in reversed(
        [
            click.option(
                "--job",
                type=click.Choice([SERVER, CLIENT]),
                help="Two hosts: the role of this host. The server ends with its client.",
            ),
            click.option(
                "--target",
                metavar="HOST:PORT",
                help="Two hosts: address of the server, for the client.",
            ),
            click.option(
                "--port",
                type=click.IntRange(1, 65535),
                default=DEFAULT_PORT,
                show_default=True,
                help="Two hosts: port of the server, also for what is measured; this port + 20000 "
                "is used, too.",
            ),
            click.option(
                "--peer-timeout",
                type=Number(min=0, min_open=True),
                default=120.0,
                show_default=True,
                help="Two hosts: seconds to wait for the other host.",
            ),
        ]
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
