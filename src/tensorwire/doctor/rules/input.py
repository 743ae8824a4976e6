"""Rule for workers that wait for their input data."""

from __future__ import annotations

from tensorwire.doctor import job_usage
from tensorwire.doctor.evidence import Finding, InputProbe, JobEvidence
from tensorwire.doctor.job_usage import percent
from tensorwire.doctor.rule import rule
from tensorwire.doctor.rules import workers

_WAITS = 0.2
_ENOUGH = 1.2  # times the needed rate


@rule("input-bound")
def input_bound(job: JobEvidence | None = None, input: InputProbe | None = None) -> Finding | None:
    """The input takes a large part of a step, or its storage is slower than the job needs."""
    split = None if job is None else job_usage.typical_split(workers.usual(job))
    share = None
    if split is not None and split.input_s is not None:
        share = split.input_s / split.step_s
    storage = _storage_share(input)
    if share is not None and share >= _WAITS:
        cost = share
    elif share is None and storage is not None and storage < 1:
        cost = 1 - storage
    else:
        return None
    sentences = [*job_usage.step_sentences(split)]
    if input is not None:
        needed = input.needed_mb_per_s
        sentences.append(
            f"Only reading the data gives {input.mb_per_s:.0f} MB/s, a file opens in "
            f"{input.open_ms:.3g} ms"
            + ("." if needed is None else f"; a worker needs {needed:.3g} MB/s.")
        )
    slow_storage = storage is not None and storage < _ENOUGH
    return Finding(
        title=f"The workers wait for their input {percent(cost)} of a step",
        cost=cost,
        evidence=tuple(sentences),
        confidence="high" if share is not None else "medium",
        change="The storage is too slow: make a local copy of the data, or read more and larger "
        "files in parallel."
        if slow_storage
        else "Prepare the input ahead: dataset.map(..., num_parallel_calls=tf.data.AUTOTUNE)"
        ".prefetch(tf.data.AUTOTUNE), and cache() what fits into memory.",
    )


def _storage_share(probe: InputProbe | None) -> float | None:
    """The rate of the storage divided by the rate that a worker needs."""
    if probe is None or not probe.needed_mb_per_s:
        return None
    return probe.mb_per_s / probe.needed_mb_per_s
