"""`bench tcp`: raw TCP, the upper limit of all layers above.

Measures one and several streams, with our own program (native/raw/tcp.cc) and with iperf3 if it is
installed. A stream sends one buffer repeatedly, and its receiver reads into one buffer, as iperf3
does. Our program sends a block of buffers and waits until all of it is received; iperf3 reports
the received bytes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import click

from tensorwire.bench.experiments.ceilings import IPERF3, Iperf3
from tensorwire.bench.experiments.ceilings import is_installed as iperf3_is_installed
from tensorwire.bench.experiments.ceilings import version as iperf3_version
from tensorwire.bench.experiments.raw_task import TcpTask
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.experiment import Case, Side, measure
from tensorwire.bench.frame.host_options import between_two
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import Metric, Record, Result
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import TaskProcesses, Watcher, wait_ready
from tensorwire.cli.click_extensions import options_of
from tensorwire.cli.two_ends import CLIENT, SERVER
from tensorwire.cluster import split_address
from tensorwire.errors import UsageError
from tensorwire.options import option
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number

COMMAND = "bench tcp"
OURS = "tcp"
MOST_STREAMS = 256
MOST_BYTES = 4 << 30
_WARM_UP_S = 0.1
_SLOWEST_BYTES_PER_S = 1e6
_PATIENCE_S = 60.0
_MOST_OF_IPERF3_BYTES = 1 << 20


@dataclass(frozen=True)
class TcpResult(Result):
    """`bench tcp`: a number of parallel raw TCP streams."""

    commands = ("bench tcp",)
    more_rounds_by = "--rounds"

    implementation: str
    """"tcp", tensorwire's own streams, or "iperf3 3.12"."""
    streams: int
    message_size: int
    """Bytes of the buffer that each stream sends repeatedly, and receives into."""
    mb_per_s: float
    """The rate of all streams together."""

    @property
    def metric(self) -> Metric:
        return Metric(
            f"Raw TCP, streams: {self.streams}", self.implementation, self.mb_per_s, "MB/s"
        )

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--streams {text}: give numbers, as in 1,4") from None


@dataclass(frozen=True)
class TcpPlan:
    """One call of `bench tcp`."""

    streams: tuple[int, ...] = option(
        (1, 4),
        "Numbers of parallel streams; each is measured.",
        metavar="LIST",
        default_text="1,4",
        parse=_numbers,
    )
    message_size: int = option(128 << 10, "Bytes of the buffer that a stream sends repeatedly.")
    seconds: int = option(1, "Seconds per measurement and round.", least=1)
    rounds: int = 5

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be measured."""
        if not self.streams or not all(1 <= count <= MOST_STREAMS for count in self.streams):
            raise UsageError(f"--streams takes numbers from 1 to {MOST_STREAMS}, as in 1,4")
        if len(set(self.streams)) != len(self.streams):
            raise UsageError("--streams names a number twice")
        if not 1 <= self.message_size * max(self.streams) <= MOST_BYTES:
            raise UsageError(
                f"--message-size {self.message_size}: give bytes from 1 to "
                f"{MOST_BYTES // max(self.streams)}, for {max(self.streams)} streams"
            )

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return self.rounds


def side_name(program: str, streams: int) -> str:
    """The name in tables and ratios: "tcp", "iperf3 x4"."""
    return program if streams == 1 else f"{program} x{streams}"


class StreamsSide(Side[None, TcpResult]):
    """Some streams of one program between two ends."""

    implementation: str

    def __init__(self, program: str, streams: int, plan: TcpPlan) -> None:
        self.name = side_name(program, streams)
        self._streams = streams
        self._plan = plan

    def result(self, case: Case[None], rounds: Rounds) -> TcpResult:
        return TcpResult(
            implementation=self.implementation,
            streams=self._streams,
            message_size=self._plan.message_size,
            mb_per_s=1 / statistics.typical_s(rounds),
        )


class TcpEnds(TaskProcesses):
    """The sender and the receiver of our own program."""

    def __init__(self, plan: TcpPlan, host_pool: HostPool) -> None:
        super().__init__(host_pool.cluster({SERVER: 1, CLIENT: 1}))
        self._plan = plan

    def _start(self) -> None:
        for job in (SERVER, CLIENT):
            self._start_task(job, TcpTask, {"message_size": self._plan.message_size})

    def wait_started(self, watcher: Watcher) -> None:
        """Connects as many streams as are needed."""
        for process in self._processes.values():
            wait_ready(self._cluster, process, watcher)
        host, port = split_address(self.address(SERVER))
        listens_at = host if self._cluster.is_on_this_machine else ""
        self._ask(SERVER, {"do": "receive", "host": listens_at, "port": port})
        streams = max(self._plan.streams)
        self._ask(CLIENT, {"do": "connect", "host": host, "port": port, "streams": streams})

    def send_s(self, streams: int, messages: int) -> float:
        """Seconds of a block of messages on each of the first streams."""
        block_bytes = streams * messages * self._plan.message_size
        message = {"do": "tcp", "iters": 1, "streams": streams, "messages": messages}
        timeout_s = _PATIENCE_S + block_bytes / _SLOWEST_BYTES_PER_S
        return float(self._ask(CLIENT, message, timeout_s)["step_s"][0])


class OurStreams(StreamsSide):
    """Streams of our own program."""

    implementation = OURS

    def __init__(self, ends: TcpEnds, streams: int, plan: TcpPlan) -> None:
        super().__init__(OURS, streams, plan)
        self._ends = ends
        self._messages = 1

    def warm_up(self, what: None) -> None:
        """Determines the number of messages per measurement."""
        messages = 1
        while (seconds := self._ends.send_s(self._streams, messages)) < _WARM_UP_S:
            messages *= 2 if seconds > _WARM_UP_S / 10 else 8
        self._messages = max(1, round(messages * self._plan.seconds / seconds))

    def block(self, what: None, steps: int | None) -> list[float]:
        """Seconds for a MB (10^6 bytes), over all streams."""
        seconds = self._ends.send_s(self._streams, self._messages)
        return [seconds * 1e6 / (self._streams * self._messages * self._plan.message_size)]


class Iperf3Streams(StreamsSide):
    """Streams of iperf3, whose server is running."""

    def __init__(self, iperf3: Iperf3, streams: int, plan: TcpPlan) -> None:
        super().__init__(IPERF3, streams, plan)
        self.implementation = f"{IPERF3} {iperf3_version()}"
        self._iperf3 = iperf3

    def block(self, what: None, steps: int | None) -> list[float]:
        """Seconds for a MB (10^6 bytes), over all streams."""
        plan = self._plan
        return [1 / self._iperf3.mb_per_s(plan.seconds, self._streams, plan.message_size)]


def run(plan: TcpPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> Record[TcpResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        ends = stack.enter_context(TcpEnds(plan, host_pool))
        iperf3 = stack.enter_context(Iperf3(host_pool)) if iperf3_is_installed() else None
        ends.wait_started(watcher)
        if iperf3 is not None and not iperf3.wait_started(watcher):
            iperf3 = None
        sides: list[Side[None, TcpResult]] = []
        for streams in plan.streams:
            sides.append(OurStreams(ends, streams, plan))
            if iperf3 is not None:
                sides.append(Iperf3Streams(iperf3, streams, plan))
        pairs = [(side_name(OURS, n), side_name(IPERF3, n)) for n in plan.streams]
        pairs += [(side_name(OURS, n), OURS) for n in plan.streams if n != 1]
        cases = [Case("streams", None, [None] * plan.rounds)]
        return measure(COMMAND, sides, cases, watcher, pairs=pairs, lab=host_pool.document)


@click.command(
    "tcp",
    epilog="""\b
Examples:
  tensorwire bench tcp
  tensorwire bench tcp --streams 1,2,8 --message-size 1048576 --json tcp.json
  tensorwire bench tcp --job server
  tensorwire bench tcp --job client --target host1:12222""",
)
@options_of(TcpPlan)
@comparison_options(default_rounds=5, tensor_fuse=False, transport=False, protocols=False)
@between_two(COMMAND)
def command(*, comparison: Comparison, **options: Any) -> None:
    """Measure raw TCP, the upper limit: one and several streams, and iperf3 where installed.

    MB are 10^6 bytes.
    """
    measure_and_show(COMMAND, TcpPlan(**options, rounds=comparison.rounds), run, comparison)


def _section(record: Record[TcpResult]) -> Section:
    message_size = record.results[0].message_size
    by_streams: dict[int, list[TcpResult]] = {}
    for result in record.results:
        by_streams.setdefault(result.streams, []).append(result)
    names = {"tcp": "tcp (ours)"}
    table = Table(
        f"Raw TCP, {message_size} bytes at a time (MB = 10^6 bytes)",
        ["program", "streams", "MB/s"],
        [
            [
                [names.get(r.implementation, r.implementation), str(r.streams), number(r.mb_per_s)]
                for r in rows
            ]
            for rows in by_streams.values()
        ],
    )
    charts = [
        Bars(
            "Rate, MB = 10^6 bytes",
            "MB/s",
            [
                Bar(f"{r.implementation}, {r.streams}", r.mb_per_s, r.implementation)
                for rows in by_streams.values()
                for r in rows
            ],
            "The number after a name is the number of streams.",
        )
    ]
    notes = []
    if all(r.implementation == "tcp" for r in record.results):
        notes.append("iperf3 was not measured: it is not installed (apt-get install iperf3)")
    elif message_size > _MOST_OF_IPERF3_BYTES:
        notes.append("iperf3 sent 1 MiB at a time, which is its limit")
    return Section("Raw TCP", charts=charts, tables=[table], notes=notes)
