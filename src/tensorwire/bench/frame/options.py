"""The command of an experiment: its own options, those that experiments share, and the hosts'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import click

from tensorwire.bench.frame import several_hosts, showing
from tensorwire.bench.frame.experiment import Experiment
from tensorwire.bench.frame.hosts import open_host_pool
from tensorwire.bench.frame.several_hosts import HostRole
from tensorwire.bench.frame.variants import (
    REWRITES,
    TENSOR_FUSE,
    TRANSPORTS,
    parse_protocols,
    parse_rewrites,
)
from tensorwire.bench.lab import LabSettings
from tensorwire.bench.lab.settings import EXAMPLE
from tensorwire.bench.lab.settings import parse as parse_lab
from tensorwire.cli.click_extensions import SectionedCommand, options_of, refuse_unused, takes
from tensorwire.cli.main import end_in_order
from tensorwire.cli.options import SERVER, Output, TwoEnds, two_ends_options
from tensorwire.cluster import ClusterSpec
from tensorwire.errors import UsageError
from tensorwire.options import option
from tensorwire.plugin.rewrites import WIRE_DTYPES
from tensorwire.report.progress import ProgressDisplay

_SEVERAL = "is for several hosts: give --ps-hosts, --worker-hosts and --job, too"

Decorator = Callable[[Any], Any]


def experiment_command(
    kind: type[Experiment[Any, Any]],
    examples: str,
    *,
    tasks: str = "",
    chosen_by_server: Callable[..., Mapping[str, int]] | None = None,
    fields: Sequence[str] = (),
) -> click.Command:
    """The command of an experiment, whose help is the class's docstring.

    Args:
        examples: command lines, for the help.
        tasks: "one" or "several" of each job if the tasks may be on the hosts of --ps-hosts and
            --worker-hosts; "ends" for --job server and --job client --target; empty: neither.
        chosen_by_server: what a server chooses for its tasks, from the command's options.
        fields: the options among the experiment's fields; empty: all.
    """

    def callback(**given: Any) -> None:
        end_in_order()
        output, lab = given.pop("output"), given.pop("lab", None)
        options = _fields(kind, given, lab)
        role = None
        if tasks == "ends":
            role = _role_of_ends(kind.command, options.pop("ends"), chosen_by_server, options)
        elif tasks:
            role = _role_of_jobs(kind.command, options, several=tasks == "several")
        if role is not None and lab is not None:
            others = "--job" if tasks == "ends" else "--ps-hosts and the like"
            raise UsageError(f"--lab makes hosts of its own: leave out {others}")
        if role is not None and not role.leads:
            with ProgressDisplay(kind.command, 0) as progress:
                several_hosts.serve(role, progress)
            return
        if role is not None and tasks == "several":
            options |= {"ps": len(role.hosts["ps"]), "workers": len(role.hosts["worker"])}
        experiment = kind.of_options({n: each for n, each in options.items() if each is not None})
        with (
            ProgressDisplay(kind.command, experiment.blocks) as progress,
            open_host_pool(lab) if role is None else several_hosts.lead(role, progress) as hosts,
        ):
            record = experiment.run(progress, hosts)
            notes = [*hosts.notes, *experiment.notes]
        showing.give(record, output, notes)
        if role is not None and (line := experiment.last_line(record)):
            click.echo(line, err=output.is_json)

    common = {each.name for each in dataclasses.fields(Experiment)}
    own = fields or [e.name for e in dataclasses.fields(kind) if e.name not in common]
    hosts = {"": [], "ends": [two_ends_options]}.get(tasks, [options_of(_Hosts)])
    command: Any = callback
    for each in reversed([options_of(kind, own), *_shared_options(kind), *hosts]):
        command = each(command)
    name = kind.command.split()[-1]
    epilog = f"\b\nExamples:\n{examples.strip(chr(10))}"
    return click.command(name, SectionedCommand, help=kind.__doc__, epilog=epilog)(command)


@dataclass(frozen=True)
class SharedOptions:
    """Options of which each experiment has some, by `options_of`."""

    protocols: Sequence[str] = option(
        (), "grpc, grpc++ or grpc,grpc++.  [default: grpc,grpc++]", metavar="LIST", repeated=True
    )
    """The texts, not parsed."""
    tensor_fuse: bool = option(False, "Measure the last protocol once more with fused tensors.")
    rewrites: tuple[str, ...] | None = option(
        None,
        "Measure the last protocol once more with each of these rewrites of its graphs: "
        f"{', '.join([*REWRITES, *WIRE_DTYPES])}; a+b combines two; all stands for each exact "
        "one; none for no rewrite.",
        metavar="LIST",
        parse=parse_rewrites,
    )
    lab: LabSettings | None = option(
        None,
        f"Measure between the hosts of a lab: {EXAMPLE}; delay and cpus (per host, such as "
        "cpus=1) are optional. Requires root and tensorwire[bench].",
        metavar="SETTINGS",
        parse=parse_lab,
    )
    transport: str | None = option(
        None,
        "How grpc++ moves payloads between tasks of one host.  [default: auto; of bench all: tcp]",
        choices=TRANSPORTS,
    )


def check_transport(transport: str, protocols: Sequence[str] | None, default: str) -> None:
    """Raises UsageError if --transport is set but --protocols leaves out grpc++, which uses it."""
    if transport != default and protocols is not None and "grpc++" not in protocols:
        raise UsageError(
            f"--transport {transport} is for grpc++, and --protocols {','.join(protocols)} leaves "
            "it out"
        )


def _shared_options(kind: type[Experiment[Any, Any]]) -> list[Decorator]:
    shared = options_of(SharedOptions, tuple(kind.takes))
    return [shared, options_of(kind, ["rounds"]), takes(Output, "output")]


def _fields(
    kind: type[Experiment[Any, Any]], given: Mapping[str, Any], lab: LabSettings | None
) -> dict[str, Any]:
    """The options, with those that experiments share as the fields of `Experiment`.

    Raises:
        UsageError: some of them contradict each other.
    """
    fields = dict(given)
    texts = fields.pop("protocols", ())
    named = parse_protocols(",".join(texts)) if texts else None
    if named is not None:
        fields["protocols"] = named
    if "transport" in fields:
        transport = fields["transport"] or "auto"
        check_transport(transport, named, "auto")
        if lab is not None and transport == "memory":
            raise UsageError("--transport memory: the hosts of a lab share no memory")
        # One machine could share memory, but the separate hosts that a lab stands for could not.
        fields["transport"] = transport if lab is None else "tcp"
    if fields.get("rewrites") is None:
        fields["rewrites"] = kind.default_rewrites
    if fields.pop("tensor_fuse", False) and TENSOR_FUSE not in fields["rewrites"]:
        fields["rewrites"] = (TENSOR_FUSE, *fields["rewrites"])
    return fields


@dataclass(frozen=True)
class _Hosts:
    """The options of experiments between hosts with a ps or a worker each."""

    SECTIONS: ClassVar = {"Several hosts": ("ps_hosts", "worker_hosts", "job", "task", "timeout")}

    ps_hosts: str | None = option(None, "Address of each ps.", metavar="HOST:PORT[,…]")
    worker_hosts: str | None = option(
        None, "Address of each worker. The first worker measures.", metavar="HOST:PORT[,…]"
    )
    job: str | None = option(None, "Role of this host.", choices=("ps", "worker"))
    task: int = option(0, "The task's index, its place in --ps-hosts or --worker-hosts.")
    timeout: float = option(120.0, "Seconds to wait for another host.", above=0)


def _role_of_jobs(command: str, options: dict[str, Any], *, several: bool) -> HostRole | None:
    """The role of this host by --ps-hosts and --job; takes these out of `options`."""
    given = _Hosts(**{each.name: options.pop(each.name) for each in dataclasses.fields(_Hosts)})
    job, task = given.job, given.task
    if (given.ps_hosts, given.worker_hosts, job) == (None, None, None):
        refuse_unused(_SEVERAL, "task", "timeout")
        return None
    if given.ps_hosts is None or given.worker_hosts is None or job is None:
        raise UsageError("several hosts need --ps-hosts, --worker-hosts and --job (ps or worker)")
    cluster = ClusterSpec.from_hosts(ps=given.ps_hosts, worker=given.worker_hosts)
    hosts = {name: tuple(cluster.addresses(name).values()) for name in cluster.jobs}
    if not several and any(len(of_job) != 1 for of_job in hosts.values()):
        raise UsageError(f"{command} uses one ps and one worker")
    if not 0 <= task < len(hosts[job]):
        raise UsageError(f"--task {task}: --{job}-hosts has {len(hosts[job])}")
    return HostRole(command, hosts, job, task, given.timeout)


def _role_of_ends(
    command: str,
    ends: TwoEnds,
    chosen_by_server: Callable[..., Mapping[str, int]] | None,
    options: Mapping[str, Any],
) -> HostRole | None:
    if ends.job is None:
        return None
    if ends.job != SERVER or chosen_by_server is None:
        return HostRole.of_ends(command, ends)
    return HostRole.of_ends(command, ends, chosen_by_server(**options))
