"""The options that say where tasks run: this machine, a lab, or several hosts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import click

from tensorwire.bench.frame import remote_hosts
from tensorwire.bench.frame.comparison_options import Comparison
from tensorwire.bench.frame.host_pool import HostPool, open_host_pool
from tensorwire.bench.frame.remote_hosts import HostRole
from tensorwire.bench.frame.task_processes import Watcher
from tensorwire.cli.click_extensions import Number, refuse_unused
from tensorwire.cli.two_ends import SERVER, TwoEnds, two_ends_options
from tensorwire.cluster import ClusterSpec
from tensorwire.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_SEVERAL = "is for several hosts: give --ps-hosts, --worker-hosts and --job, too"


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
            return _serve(part)

        decorated: Any = with_part
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def between_two(
    command_name: str, choose: Callable[..., Mapping[str, int]] = lambda **_: {}
) -> Callable[[Command], Command]:
    """--job, --target, --port and --peer-timeout, for experiments without TensorFlow.

    As `between_hosts`: a server serves the client's experiment, and the command is not called.
    `choose`: what a server chooses for its tasks, from the command's options.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_part(*, comparison: Comparison, ends: TwoEnds, **others: Any) -> Any:
            if ends.job is None:
                return command(comparison=comparison, **others)
            if comparison.lab is not None:
                raise UsageError("--lab makes hosts of its own: leave out --job")
            if ends.job != SERVER:
                part = HostRole.of_ends(command_name, ends)
                return command(comparison=dataclasses.replace(comparison, part=part), **others)
            return _serve(HostRole.of_ends(command_name, ends, choose(**others)))

        return two_ends_options(with_part)  # type: ignore[return-value]

    return decorate


def _serve(role: HostRole) -> None:
    from tensorwire.report.progress import ProgressDisplay

    with ProgressDisplay(role.command, 0) as progress:
        remote_hosts.serve(role, progress)
