"""Dataclasses of JSON documents."""

from __future__ import annotations

import subprocess
import sys

# Each round has classes of its own, because what is learnt of a class is learnt once. Without the
# lock in dataclass_json, about one round in twelve crashed.
_SCRIPT = """
import dataclasses, sys, threading
from concurrent.futures import ThreadPoolExecutor
from tensorwire.dataclass_json import from_document

sys.setswitchinterval(1e-6)
THREADS, NAMES = 8, [f"field{n}" for n in range(20)]
together = threading.Barrier(THREADS)

def read(record, document):
    together.wait()
    return from_document(record, document)

with ThreadPoolExecutor(THREADS) as pool:
    for _ in range(80):
        parts = {n: dataclasses.make_dataclass(n, [(m, int) for m in NAMES]) for n in NAMES[:10]}
        record = dataclasses.make_dataclass("Record", [(n, list[p]) for n, p in parts.items()])
        document = {n: [dict.fromkeys(NAMES, 1)] for n in parts}
        made = list(pool.map(read, [record] * THREADS, [document] * THREADS))
        assert all(dataclasses.asdict(each) == document for each in made)
"""


def test_several_threads_may_read_a_record_that_was_never_read_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
