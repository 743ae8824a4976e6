"""Rules for the network between the tasks: the link, the protocol above it, and its messages."""

from __future__ import annotations

from collections.abc import Iterator

from tensorwire.cluster import GRPC, GRPCPP
from tensorwire.doctor.evidence import Finding, HostUsage, JobEvidence, Layers, step_sentences
from tensorwire.doctor.rules import rule
from tensorwire.units import percent

_FULL = 0.75  # of the link's rate, while a task has something to send
_WAITS_FOR_WIRE = 0.5  # of a step; then both directions together may fill a link
_FAR_BELOW = 0.6
_SMALL_BYTES = 100e3  # most Recvs of a click-through model are below this
_MANY = 50  # a step
# CPU time that fusing saves per small tensor: 726 tensors take 67 ms on grpc, 17 ms on grpc++ and
# 12 ms fused (docs/decisions/measuring.md).
_COST_OF_ONE_S = {GRPC: 75e-6, GRPCPP: 7e-6}


@rule("link-saturated", unless=("hot-ps", "big-variable"))
def link_saturated(job: JobEvidence) -> Finding | None:
    """A host's link is full while its tasks communicate."""
    if len({task.host for task in job.tasks}) < 2:
        return None
    fullest = max(_links(job), key=lambda link: link[1], default=None)
    if fullest is None or fullest[1] < _FULL:
        return None
    host, full, use, sentence = fullest
    communicating = job.communicating_share
    split = job.split
    return Finding(
        title=f"The link of {host.host} is full",
        cost=use if communicating is None else min(use, communicating),
        evidence=(
            sentence,
            *step_sentences(split),
        ),
        confidence="high" if split is not None and full > 0.85 else "medium",
        change="Move fewer bytes per step: send ids that repeat in a batch, their rows and "
        "gradients once (`tensorwire run --exact-rewrites`; results stay the same), look rows up "
        "on the ps, use larger batches or half precision. Or distribute the ps over more hosts.",
    )


def _links(job: JobEvidence) -> Iterator[tuple[HostUsage, float, float, str]]:
    """Host, use of its link while tasks communicate, use over the whole time, and a sentence."""
    communicating = job.communicating_share
    split = job.split
    wire = 0.0 if split is None else split.wire_s / split.step_s
    for host in job.hosts:
        tasks = [task for task in job.tasks if task.host == host.host]
        if not host.link_mb_per_s or not tasks:
            continue
        out, into = (
            sum(getattr(task, name) / task.seconds for task in tasks) / 1e6
            for name in ("tx_bytes", "rx_bytes")
        )
        for way, moved in (("out", out), ("in", into)):
            use = moved / host.link_mb_per_s
            # A single worker does not send while it computes; with several, another one sends then.
            alone = len(job.workers) == 1 and communicating
            full = min(1.0, use / communicating) if alone and communicating else use
            yield (
                host,
                full,
                use,
                f"{moved:.0f} MB/s {way} at {host.host}, whose link carries "
                f"{host.link_mb_per_s:.0f}: {percent(use)} on average"
                + (f", {percent(full)} while not computing." if alone else "."),
            )
        # Workers first pull and then push. One worker, or several that run in lockstep, use one
        # direction at a time.
        both = min(1.0, (out + into) / host.link_mb_per_s)
        if wire >= _WAITS_FOR_WIRE:
            yield (
                host,
                both,
                both,
                f"{out:.0f} MB/s out and {into:.0f} in at {host.host}, whose link carries "
                f"{host.link_mb_per_s:.0f} each way: {percent(both)} on average, because workers "
                "use one direction after the other.",
            )


@rule("rpc-below-link")
def rpc_below_link(layers: Layers, job: JobEvidence | None = None) -> Finding | None:
    """The job's protocol leaves most of what raw TCP carries unused."""
    # The link carries at least what the fastest layer reached. Slower layers may have been measured
    # while the hosts were busy.
    rates = [layer.mb_per_s or 0.0 for layer in layers.measured if layer.name != "link"]
    ceiling = max(rates, default=0.0)
    protocol = GRPC if job is None else job.protocol
    found = _fastest_layer(layers, protocol)
    if not ceiling or found is None or found[1] >= _FAR_BELOW * ceiling:
        return None
    name, rate = found
    raw = layers.mb_per_s("tcp")
    sentences = [
        f"{name} on {protocol} moves {rate:.0f} MB/s over a link that carries {ceiling:.0f}"
        + ("." if raw is None else f" (raw TCP: {raw:.0f}).")
    ]
    better = layers.mb_per_s(name, GRPCPP) if protocol == GRPC else None
    if better is not None:
        sentences.append(f"On grpc++ it is {better:.0f} MB/s.")
    communicating = None if job is None else job.communicating_share
    helps = protocol == GRPC and (better is None or better > 1.2 * rate)
    return Finding(
        title=f"{protocol} uses {percent(rate / ceiling)} of what the link carries",
        cost=None if communicating is None else communicating * (1 - rate / ceiling),
        evidence=tuple(sentences),
        confidence="high" if better is not None else "medium",
        change='Use protocol="grpc++", or `tensorwire run --protocol grpc++`.'
        if helps
        else "Give the tasks more communication threads (NETWORK_PS_CORE_NUMBER) where cores are "
        "free, and measure with `tensorwire bench transfer` whether the rate improves.",
    )


def _fastest_layer(layers: Layers, protocol: str) -> tuple[str, float] | None:
    """The faster of RPC and tensors: tensors use RPC, so RPC can be at least as fast as they."""
    rates = [(name, layers.mb_per_s(name, protocol)) for name in ("rpc", "tensor")]
    known = [(name, rate) for name, rate in rates if rate is not None]
    return max(known, key=lambda layer: layer[1], default=None)


@rule("small-tensors")
def small_tensors(job: JobEvidence) -> Finding | None:
    """Many small tensors cross one by one."""
    if job.tensor_fuse:
        return None
    steps = job.steps
    split = job.split
    if not steps:
        return None
    small = [
        flow
        for task in job.tasks
        for flow in task.received
        if flow.tensors and flow.bytes / flow.tensors < _SMALL_BYTES
    ]
    a_step = sum(flow.tensors for flow in small) / steps
    if a_step < _MANY:
        return None
    size = sum(flow.bytes for flow in small) / (a_step * steps)
    worker_s = sum(worker.seconds for worker in job.workers)
    cost = a_step * _COST_OF_ONE_S[job.protocol] / (worker_s / steps)
    return Finding(
        title=f"{a_step:.0f} small tensors cross at each step, one by one",
        cost=min(cost, job.communicating_share or 1.0),
        evidence=(
            f"{a_step:.0f} tensors of {size / 1e3:.2g} KB on average cross at a worker's step of "
            f"{worker_s / steps * 1e3:.3g} ms.",
            f"Alone, each costs about {_COST_OF_ONE_S[job.protocol] * 1e6:.0f} us more than in a "
            "message with others.",
            *step_sentences(split),
        ),
        confidence="medium",
        change="Send them in one message and run the operations of many tables as one: "
        "config=tensorwire.tf.ConfigProto(exact_rewrites=True, ...), or "
        "`tensorwire run --exact-rewrites`; results stay the same.",
    )
