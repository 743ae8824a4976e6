"""Random programs as plain data: operations, their devices, and the steps. Without TensorFlow.

A seed is text, and always gives the same program.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.plugin.rewrites import REWRITES

JOBS = {"ps": 1, "worker": 2, "chief": 1}
"""The chief is the client; all other tasks only serve."""
SERVERS = ("ps:0", "worker:0", "worker:1")
PATIENCE = float(os.environ.get("DIFFERENTIAL_PATIENCE", "1"))
"""Factor of all timeouts: on a slow link a tensor takes minutes."""
CPUS = 2
"""CPU devices of each server; the chief has one."""
SERVER_DEVICES = tuple(
    f"/job:{job}/task:{task}/device:CPU:{cpu}"
    for job, task in (("ps", 0), ("worker", 0), ("worker", 1))
    for cpu in range(CPUS)
)
DEVICES = (*SERVER_DEVICES, "/job:chief/task:0/device:CPU:0")
DTYPES = (
    "float32", "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32",
    "int64", "bool", "complex64", "string", "string",
)  # fmt: skip
SIZES = (0, 1, 3, 40, 400, 1000, 1025, 40_000, 70_000, 300_000)
"""Elements: up to 4 KB, above the limits of loans (256 KiB) and of the buffer pool."""
LARGE_SIZES = (2_200_000, 7_500_000)
"""Elements of tensors that use several streams (8 MB and more, and 30 MB); 4-byte types only."""
MOST_STRINGS = 3000
ERRORS = (
    "gather",
    "row",
    "assert",
    "reshape",
    "number",
    "file",
    "numerics",
    "closed queue",
    "unset",
)

_STATELESS = {
    "source": 0, "mix": 6, "move": 6, "fan": 1, "split": 2, "branch": 3, "dead": 1, "cond": 1,
    "loop": 2, "list": 1, "call": 1, "after": 1, "lookup": 1.5, "error": 1.2,
}  # fmt: skip
STATEFUL = {
    "variable": 3, "counter": 3, "queue": 3, "table": 4, "reference": 3, "handoff": 5,
    "exclusive": 1.5, "array": 1.5,
}  # fmt: skip
# Switch and Merge, references, arrays, mutexes and graph loops are for sessions only. Eager
# operations have no control edges.
_NOT_IN = {
    "session": frozenset[str](),
    "function": frozenset({"reference", "array", "exclusive"}),
    "eager": frozenset(
        {"dead", "branch", "reference", "counter", "queue", "table", "after", "handoff",
         "exclusive", "array"}
    ),
}  # fmt: skip


class Errors(enum.Enum):
    """The errors that a step of a program may end with."""

    ONE = enum.auto()
    """Exactly one operation fails, and its error is reported."""
    ONE_OR_CANCELLED = enum.auto()
    """The same in a function, where the cancellation of another part may be reported instead."""
    ANY = enum.auto()
    """Several operations fail; any of their errors may be reported, alone or with others."""


@dataclass(frozen=True)
class Node:
    """One tensor of a program. `inputs` and `after` are indices of earlier nodes."""

    kind: str
    devices: tuple[str, ...]
    """Four devices; a node uses as many as its kind has parts."""
    dtype: str
    size: int
    """Number of elements of a source; for other nodes, the number of elements that are kept."""
    inputs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    salt: int = 0
    error: str = ""
    """The error, for the kind "error"."""


@dataclass(frozen=True)
class Act:
    """One action of the client.

    Kinds: "run", one step. "partial", one step by `partial_run`. "together", several steps in
    parallel. With a random outcome:
    "deadline", a step with too short a deadline; "cancel", a step that is cancelled while it runs.
    For a step that cannot end: "stuck deadline", "stuck cancel".
    """

    kind: str
    steps: tuple[int, ...]
    """Step numbers, on which the sources depend."""
    wanted: int = 0
    """The index of a set of fetches in the program."""
    moment: float = 0.0
    """The moment of a deadline or a cancellation, as a share of the step's usual time."""


@dataclass(frozen=True)
class Program:
    """A graph and the acts on it."""

    seed: str
    mode: str
    """"session" (TensorFlow 1), "function" or "eager" (TensorFlow 2)."""
    nodes: tuple[Node, ...]
    wanted: tuple[tuple[int, ...], ...]
    acts: tuple[Act, ...]
    master: str = "worker:0"
    rewrites: tuple[str, ...] = ()
    """Names of REWRITES."""
    control_flow_v2: bool = False
    optimized: bool = False

    @property
    def servers(self) -> list[str]:
        """The servers that the program's steps need."""
        used = {device.split("/device:")[0] for node in self.nodes for device in node.devices}
        names = {name.removeprefix("/job:").replace("/task", "") for name in used}
        masters = {self.master} if self.mode == "session" else set()
        return [name for name in SERVERS if name in names | masters]

    @property
    def errors(self) -> Errors:
        if sum(node.kind == "error" for node in self.nodes) > 1:
            return Errors.ANY
        return Errors.ONE_OR_CANCELLED if self.mode == "function" else Errors.ONE

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Program:
        nodes = tuple(
            Node(**{key: _tuples(value) for key, value in node.items()}) for node in data["nodes"]
        )
        acts = tuple(
            Act(**{key: _tuples(value) for key, value in act.items()}) for act in data["acts"]
        )
        return Program(
            **{
                **data,
                "nodes": nodes,
                "acts": acts,
                "wanted": _tuples(data["wanted"]),
                "rewrites": _tuples(data["rewrites"]),
            }
        )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value


def drawn(seed: str, *, endured: bool = False) -> Program:
    """The program of a seed. `endured`: True if its steps must be repeatable and may fail."""
    draw = random.Random(seed)
    mode = draw.choices(("session", "function", "eager"), (5, 4, 0 if endured else 1))[0]
    is_stateful = not endured and draw.random() < 0.3
    # In eager mode, TensorFlow may report the error of one program in the next one, because
    # constants that were being sent during the error stay unusable on the server.
    errors = not (endured or is_stateful or mode == "eager")
    nodes = _nodes(draw, mode, is_stateful, errors)
    wanted = tuple(
        tuple(draw.sample(range(len(nodes)), k=min(len(nodes), draw.randint(1, 8))))
        for _ in range(draw.choice((1, 1, 2)))
    )
    control_flow_v2 = draw.random() < 0.5
    # Steps of a session that call functions may hang, also on gRPC, if they run in parallel or are
    # cancelled (TensorFlow's PartitionedCallOp). Each task instantiates its parts at other tasks in
    # the threads that it needs to answer them, and a machine with two cores has only two. If a step
    # is cancelled just when it calls a function, the part here ends before it begins, and nobody
    # tells the parts at other tasks, which wait for its tensors.
    calls = {"call", "cond", "loop"} if control_flow_v2 else {"call"}
    simple = mode != "session" or all(node.kind not in calls for node in nodes)
    return Program(
        seed,
        mode,
        nodes,
        wanted,
        ()
        if endured
        else _acts(
            draw,
            mode,
            is_stateful,
            len(wanted),
            simple=simple,
            by_parts=all(node.kind != "error" for node in nodes),
        ),
        master=draw.choice(SERVERS),
        rewrites=_rewrites(draw, mode),
        control_flow_v2=control_flow_v2,
        optimized=draw.random() < 0.2,
    )


def _rewrites(draw: random.Random, mode: str) -> tuple[str, ...]:
    """Half of the programs have no rewrites; the others have one, several or all exact ones."""
    if mode == "eager" or draw.random() < 0.5:
        return ()
    if draw.random() < 0.4:
        return ("exact_rewrites",)
    return tuple(draw.sample(tuple(REWRITES)[:-1], k=draw.choice((1, 1, 2, 3))))


def _nodes(draw: random.Random, mode: str, is_stateful: bool, errors: bool) -> tuple[Node, ...]:
    kinds = {**_STATELESS, **(STATEFUL if is_stateful else {})}
    kinds = {kind: weight for kind, weight in kinds.items() if kind not in _NOT_IN[mode]}
    if not errors:
        kinds["error"] = 0
    # Two at least, so that one of them is of a server.
    # No session reaches the chief: a task that is told of another cluster, as the chief is when a
    # server was replaced, frees what its parts of older sessions still use, and crashes, also on
    # gRPC (TensorFlow's SessionMgr::ResetDefaultWorkerCache).
    places = SERVER_DEVICES if mode == "session" else DEVICES
    devices = draw.sample(places, k=draw.choice((2, 2, 3, 4, len(places))))
    sources = draw.randint(1, 5)
    nodes: list[Node] = []
    # In eager mode, each operation is waited for.
    most = 8 if mode == "eager" else 35
    for index in range(sources + min(most, draw.choice((1, 2, 3, 5, 8, 12, 20, 35)))):
        earlier = range(max(0, index - 12), index)
        is_source = index < sources
        dtype = draw.choice(DTYPES)
        size = draw.choice(SIZES)
        if is_source and draw.random() < 0.04:
            dtype, size = draw.choice(("float32", "int32")), draw.choice(LARGE_SIZES)
        nodes.append(
            Node(
                "source" if is_source else draw.choices(list(kinds), list(kinds.values()))[0],
                tuple(draw.choices(devices, k=4)),
                dtype,
                min(size, MOST_STRINGS) if dtype == "string" else size,
                () if is_source else tuple(draw.choices(earlier, k=draw.randint(1, 4))),
                (draw.choice(earlier),) if index and draw.random() < 0.2 else (),
                draw.randrange(1000),
                draw.choice(ERRORS),
            )
        )
    return tuple(nodes)


def _acts(
    draw: random.Random, mode: str, is_stateful: bool, sets: int, *, simple: bool, by_parts: bool
) -> tuple[Act, ...]:
    """Acts with enough steps for pushes: request, standing order, and pushes from the third step.

    `simple`: steps may run at the same time and be cancelled. `by_parts`: a step may be a partial
    run, in which gRPC reports errors in several ways.
    """
    kinds = {"run": 8.0, "partial": 1 if mode == "session" and by_parts else 0}
    if simple and not is_stateful and mode != "eager":
        kinds.update({"together": 1.5, "cancel": 1, "stuck cancel": 0.4})
        if mode == "session":
            kinds.update({"deadline": 1, "stuck deadline": 0.15})
    return tuple(
        Act(
            kind := draw.choices(list(kinds), list(kinds.values()))[0],
            tuple(
                draw.randrange(50) for _ in range(draw.randint(2, 6) if kind == "together" else 1)
            ),
            draw.randrange(sets),
            draw.uniform(0, 1.3),
        )
        for _ in range(draw.choice((3, 4, 4, 6, 9)))
    )


def smaller(program: Program) -> Iterator[Program]:
    """Smaller variants of a program, the much smaller ones first."""
    acts = program.acts
    for half in (acts[: len(acts) // 2], acts[len(acts) // 2 :]):
        if 0 < len(half) < len(acts):
            yield dataclasses.replace(program, acts=half)
    for index in range(len(acts)):
        if len(acts) > 1:
            yield dataclasses.replace(program, acts=acts[:index] + acts[index + 1 :])
    if len(program.wanted) > 1:
        for kept in program.wanted:
            only = tuple(dataclasses.replace(act, wanted=0) for act in acts)
            yield dataclasses.replace(program, wanted=(kept,), acts=only)
    for number, wanted in enumerate(program.wanted):
        for index in range(len(wanted)):
            if len(wanted) > 1:
                fewer = wanted[:index] + wanted[index + 1 :]
                sets = (*program.wanted[:number], fewer, *program.wanted[number + 1 :])
                yield dataclasses.replace(program, wanted=sets)
    if (trimmed := _without_unused(program)) is not None:
        yield trimmed
    for index, node in enumerate(program.nodes):
        for simpler in _simpler(node):
            nodes = (*program.nodes[:index], simpler, *program.nodes[index + 1 :])
            yield dataclasses.replace(program, nodes=nodes)


def _simpler(node: Node) -> Iterator[Node]:
    if node.kind != "source":
        yield dataclasses.replace(node, kind="source", inputs=(), after=())
    if node.kind not in ("source", "move"):
        yield dataclasses.replace(node, kind="move")
    for index in range(len(node.inputs)):
        if len(node.inputs) > 1:
            fewer = node.inputs[:index] + node.inputs[index + 1 :]
            yield dataclasses.replace(node, inputs=fewer)
    if node.after:
        yield dataclasses.replace(node, after=())
    if node.size > 3:
        yield dataclasses.replace(node, size=3)


def _without_unused(program: Program) -> Program | None:
    """The program without nodes that no fetch needs; None if there are none."""
    needed: set[int] = set()
    left = [index for wanted in program.wanted for index in wanted]
    while left:
        if (index := left.pop()) not in needed:
            needed.add(index)
            left += [*program.nodes[index].inputs, *program.nodes[index].after]
    if len(needed) == len(program.nodes):
        return None
    number = {index: at for at, index in enumerate(sorted(needed))}

    def renamed(indices: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[index] for index in indices)

    nodes = tuple(
        dataclasses.replace(node, inputs=renamed(node.inputs), after=renamed(node.after))
        for index, node in enumerate(program.nodes)
        if index in needed
    )
    wanted = tuple(renamed(each) for each in program.wanted)
    return dataclasses.replace(program, nodes=nodes, wanted=wanted)
