"""How large the tensors are that clients ask a ps for.

The schemes are named after those of TF-gRPC-Bench (2018). All have the message size as their mean,
so that what they show is the effect of the mixture and not of more bytes.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tensorwire.errors import UsageError

PAYLOADS = ("uniform", "random", "skewed")
MOST_BYTES = 1 << 30

_SKEWED_PARTS = np.array([0.1, 1.0, 6.4])
_SKEWED_SHARES = (0.6, 0.3, 0.1)

Sizes: TypeAlias = npt.NDArray[np.int64]


def check_message_size(message_size: int) -> None:
    """Raises UsageError for a size that cannot be measured with."""
    if not 1 <= message_size <= MOST_BYTES:
        raise UsageError(f"--message-size {message_size}: give bytes from 1 to {MOST_BYTES}")


def payload_sizes(payload: str, message_size: int, count: int, seed: int) -> Sizes:
    """Bytes of each of `count` tensors; the same for the same arguments.

    Args:
        payload: "uniform": each is of `message_size` bytes; "random": from 1 to
            2 * `message_size` - 1, each size as likely as another; "skewed": six of ten are a tenth
            of `message_size`, three are `message_size`, and one is 6.4 times as large.
    """
    random = np.random.default_rng(seed)
    if payload == "uniform":
        return np.full(count, message_size, dtype=np.int64)
    if payload == "random":
        return random.integers(1, 2 * message_size, size=count, dtype=np.int64)
    if payload == "skewed":
        sizes = np.maximum(1, np.rint(_SKEWED_PARTS * message_size)).astype(np.int64)
        return random.choice(sizes, p=_SKEWED_SHARES, size=count)
    raise ValueError(f"no such payload: {payload}")
